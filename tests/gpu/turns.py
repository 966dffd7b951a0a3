"""Processes that take turns on one GPU: all alive, one at work. Each answers a line of stdin with a line of stdout."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from dataclasses import dataclass, field
from typing import Any

PREFIX = "COST "
"""Before each answer; other lines of stdout are somebody else's."""

TURN_LIMIT_S = 60.0


@dataclass
class Child:
    """A process with a model; `figures` are its results by phase. A thread reads its lines into `answers`."""

    mode: str
    process: subprocess.Popen[str]
    answers: queue.Queue[dict[str, Any] | None] = field(default_factory=queue.Queue)
    figures: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    error: str = ""

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            if line.startswith(PREFIX):
                self.answers.put(json.loads(line.removeprefix(PREFIX)))
        self.answers.put(None)  # it ended

    def answer(self, *, limit_s: float) -> dict[str, Any] | None:
        """The next answer; None, and the child is ended, where it failed or took too long."""
        try:
            found = self.answers.get(timeout=limit_s)
        except queue.Empty:
            found = None
        if found is None:
            self.error = f"{self.mode}: ended, or no answer within {limit_s:.0f} s"
            self.process.kill()
        return found

    def turn(self, phase: str) -> None:
        """Let it run the phase once, alone."""
        if self.error:
            return
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{phase}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.error = f"{self.mode}: ended before {phase}"
            return
        result = self.answer(limit_s=TURN_LIMIT_S)
        if result is not None:
            self.figures.setdefault(phase, []).append(result)

    def end(self) -> None:
        """Its stdin ends, and so does it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

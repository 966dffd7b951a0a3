"""docs/setup.md and docs/zero_kl.md: every name of the other system has a row, and all that a row names exists."""

import ast
import importlib.metadata
import re
from functools import cache
from pathlib import Path

import pytest

from launcher.docs import pages
from launcher.duties import ROOT, RULE, SOURCES, Duty, Page, Step, module_of, read_page

SETUP, ZERO_KL = (read_page(source) for source in SOURCES)

NAMES_OF_SETUP = (
    *("MoEFloat16Module", "MoEFloat16Module.re_enable_float32_expert_bias"),
    *("_HF_CONFIG_PATCHED", "_NEMOTRON_OMNI_EXPANDED_SEQUENCE_CONTRACT", "TokenizerType"),
    *("_BRIDGE_SIGNAL_HANDLER_PATCHED", "_patch_hf_config_double_instantiation"),
    *("_force_sync_optimizer_fp32_from_model", "destroy_parallel_state", "configure_refit_environment"),
    *("setup_distributed", "validate_and_set_config", "_canonicalize_hf_config_overrides"),
    *("_get_hf_config_overrides_hash", "_resolve_iter_dir_from_root", "validate_model_paths", "setup_model_config"),
    *("_validate_model_override_conflicts", "_merge_model_overrides", "_merge_model_override_value"),
    *("_apply_parallelism_config", "_apply_moe_config", "_apply_mtp_config", "_apply_precision_config"),
    *("_apply_performance_config", "_validate_optimizer_config", "_validate_chunking_config"),
    *("_create_checkpoint_config", "_validate_training_config", "_validate_dtype_config", "_create_megatron_config"),
    *("_create_draft_pre_wrap_hook", "_patch_bridge_signal_handler_for_worker_threads", "build_inference_model"),
    *("setup_model_and_optimizer", "handle_model_import", "setup_reference_model_state", "finalize_megatron_setup"),
    "make_policy_like_config",
)
NAMES_OF_ZERO_KL = (
    *("ZeroTrainGenValidation", "ZeroTrainGenValidation.raise_if_invalid", "ZeroTrainGenValidation.emit_warnings"),
    *("_Tp1LocalLogprob", "_Tp1LocalLogprob.apply", "validate_zero_train_gen_mismatch"),
    *("validate_batch_invariant_mode", "allow_installed_flash_attn_4", "_use_fused_log_softmax_at_tp1"),
    *("enable_batch_invariant_kernels", "validate_zero_train_gen_kl", "_validate_required_values"),
    *("_validate_backend", "_validate_platform", "_validate_megatron_core_features", "_package_version"),
    *("_first_package_version", "_validate_packages", "validate_zero_train_gen_model_provider"),
    *("_validate_precision", "MEGATRON_CORE_REQUIRED_CONFIG_FIELDS", "TRANSFORMER_ENGINE_MIN_VERSION"),
    *("FLASH_ATTN_MIN_VERSION", "CUTEDSL_MIN_VERSION", "_ZERO_KL_MEGATRON_REQUIRED"),
    *("_ZERO_KL_GENERATION_REQUIRED", "_TE_NATIVE_ENV_VARS"),
)

DUTIES = (*SETUP.duties, *ZERO_KL.duties)
STEPS = (*SETUP.steps, *ZERO_KL.steps)
each_duty = pytest.mark.parametrize("duty", DUTIES, ids=lambda duty: duty.name)


@cache
def defined_in(file: str) -> frozenset[str]:
    """Names that a module defines itself, and those of its classes, by dotted name; nothing is imported."""
    tree = ast.parse((ROOT / file).read_text())
    names = {name for node in tree.body for name in _names(node)}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return frozenset(names | {f"{each.name}.{name}" for each in classes for node in each.body for name in _names(node)})


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_the_page_is_up_to_date(source: Path) -> None:
    page = source.with_suffix(".md")
    assert page.read_text() == pages()[page], "run: python -m launcher.docs"


@pytest.mark.parametrize(("page", "names"), [(SETUP, NAMES_OF_SETUP), (ZERO_KL, NAMES_OF_ZERO_KL)])
def test_every_name_has_a_row(page: Page, names: tuple[str, ...]) -> None:
    assert sorted(duty.name for duty in page.duties) == sorted(names)


@each_duty
def test_no_row_is_empty(duty: Duty) -> None:
    assert duty.duty
    assert duty.homes
    assert duty.tests


@each_duty
def test_every_home_exists(duty: Duty) -> None:
    rules = (ROOT / "docs" / "requirements.md").read_text()
    for home in duty.homes:
        if " " in home:
            name, version = home.split()
            assert importlib.metadata.version(name) == version
        elif RULE.fullmatch(home):
            assert f"\n| {home} " in rules, home
        else:
            file, name = module_of(home)
            assert name in defined_in(file), home


@each_duty
def test_every_test_exists(duty: Duty) -> None:
    for test in duty.tests:
        file, _, name = test.partition("::")
        assert name in defined_in(file), test
        assert name.startswith("test_") or file.startswith("tests/gpu/"), test


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_file_of_a_step_exists(step: Step) -> None:
    assert step.files
    assert [file for file in step.files if not (ROOT / file).is_file()] == []


def test_the_steps_are_the_pipelines() -> None:
    tree = ast.parse((ROOT / "megatron_setup" / "apply.py").read_text())
    (steps,) = [node.value for node in tree.body if isinstance(node, ast.AnnAssign) and _names(node) == ["STEPS"]]
    assert isinstance(steps, ast.Tuple)
    assert [step.name for step in SETUP.steps] == [ast.literal_eval(step.elts[0]) for step in steps.elts]


def test_each_field_that_a_step_fills_in_is_left_by_one() -> None:
    (setup,) = [
        node
        for node in ast.parse((ROOT / "megatron_setup" / "apply.py").read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "Setup"
    ]
    filled = {_names(node)[0] for node in setup.body if "init=False" in ast.unparse(node)} - {"stages"}
    left = [name for step in SETUP.steps for name in re.findall("`(.*?)`", step.leaves)]
    assert sorted(left) == sorted(filled)


def test_every_link_leads_somewhere() -> None:
    for page, text in pages().items():
        links = {link for link in re.findall(r"\]\(([^)]*)\)", text) if not link.startswith("http")}
        assert [link for link in links if not (page.parent / link).exists()] == [], page.name


def test_every_rule_that_a_text_names_exists() -> None:
    checks = (ROOT / "zero_kl" / "selftest" / "checks.py").read_text()
    rules = (ROOT / "docs" / "requirements.md").read_text()
    for page in (SETUP, ZERO_KL):
        for code in re.findall(r"\b[A-Z]{2}\d{3}\b", page.text):
            assert f"\n| {code} " in rules or f'code="{code}"' in checks, code

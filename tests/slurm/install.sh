#!/usr/bin/env bash
# Installs the Debian packages that tests/slurm needs, where one is missing. As root.
set -euo pipefail
cd "$(dirname "$0")"
missing=()
while read -r package; do
  dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
done < packages.txt
if [ ${#missing[@]} -gt 0 ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
fi

# Sourced by serve and check: makes .venv with this project and the extras given in $1, none for an empty one, and puts
# it first on PATH.
# A stamp of pyproject.toml and constraints.txt makes the second time quick.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
extras=$1
stamp=.venv/.installed-${extras:-base}
wanted=$(cat pyproject.toml constraints.txt | cksum)
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
  python=
  for candidate in python3.11 python3.12 python3.13 python3.14 python3; do
    if command -v "$candidate" >/dev/null 2>&1 &&
      "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$candidate; break; fi
  done
  if [ -z "$python" ]; then echo "TrnRT needs Python 3.11 or newer; none was found." >&2; exit 2; fi
  echo "TrnRT: installing into .venv (first time only)" >&2
  [ -x .venv/bin/python ] || "$python" -m venv .venv || { echo "python -m venv failed; install your system's python3-venv." >&2; exit 2; }
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".${extras:+[$extras]}" >&2 || exit 2
  echo "$wanted" > "$stamp"
  # Whoever has more has what less needs.
  for less in "" otel cpu cpu,grammar cpu,otel cpu,grammar,otel; do
    has_all=yes
    for extra in ${less//,/ }; do case ",$extras," in *",$extra,"*) ;; *) has_all= ;; esac; done
    [ -z "$has_all" ] || echo "$wanted" > ".venv/.installed-${less:-base}"
  done
fi
# Spinning threads on shared cores collapse; tokenizers' own pool would take the cores that serve.
export PATH="$PWD/.venv/bin:$PATH" OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false

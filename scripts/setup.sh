# Sourced by scripts/demo and scripts/test: makes the virtual environments they run in.
# Failures end in `die`: callers test the result of these functions, which turns `set -e` off.
# shellcheck shell=bash

repo_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repo_dir"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore RAY_USAGE_STATS_ENABLED=0

die() {
    echo "error: $*" >&2
    exit 1
}

# help_if_asked ARGUMENT: what the script says of itself, before it sets anything up.
help_if_asked() {
    [ "${1:-}" = --help ] || [ "${1:-}" = -h ] || return 0
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit
}

# python_is PYTHON LOWEST_MINOR HIGHEST_MINOR: does it run, and is it Python 3 in that range?
python_is() {
    "$1" -c "import sys; sys.exit(not (3, $2) <= sys.version_info[:2] <= (3, $3))" 2>/dev/null
}

# find_python LOWEST_MINOR HIGHEST_MINOR: prints the first that fits.
find_python() {
    local candidate
    for candidate in python3 python3.{13,12,11,10} /usr/bin/python3 \
        "$HOME"/.pyenv/versions/3.{13,12,11,10}.*/bin/python; do
        if command -v "$candidate" >/dev/null && python_is "$candidate" "$1" "$2"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# install_debian_packages PYTHON: what is missing, where apt-get is and we are root.
install_debian_packages() {
    local missing=()
    command -v ip >/dev/null || missing+=(iproute2)
    command -v unshare >/dev/null && command -v nsenter >/dev/null || missing+=(util-linux)
    command -v mount >/dev/null || missing+=(mount)
    command -v hostname >/dev/null || missing+=(hostname)
    "$1" -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    apt_install "${missing[@]}"
}

# apt_install PACKAGES...: if there are any, where apt-get is and we are root.
apt_install() {
    [ $# -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
    echo "installing Debian packages: $*"
    apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" ||
        die "apt-get could not install $*"
}

# make_venv PYTHON DIRECTORY: with pip in it, also where Debian's python3-venv is missing.
make_venv() {
    rm -rf "$2"
    if "$1" -c 'import ensurepip' 2>/dev/null; then
        "$1" -m venv "$2" || die "$1 -m venv failed"
        return
    fi
    # Into a directory of our own: Debian's Python refuses `pip install --user`.
    "$1" -m pip install -qq --target .setup/virtualenv virtualenv ||
        die "no virtual environment possible: install python3-venv, or pip for $1"
    PYTHONPATH=.setup/virtualenv "$1" -m virtualenv -q "$2" || die "virtualenv failed"
}

tell_every_s=15
grown_kib=4096

# and_tell DIRECTORY COMMAND...: says now and then that it still runs, and what is there by then.
# pip downloads to elsewhere before it installs: until the directory grows, that is what it does.
and_tell() {
    local directory=$1 start=$SECONDS status=0 teller silence size at_first
    shift
    at_first=$(du -sk "$directory" 2>/dev/null | cut -f1)
    exec {silence}<> <(:) # `read` waits without a process that would outlive it
    # Bash has it ignore Ctrl-C, and so it ends by itself.
    while ! read -rt "$tell_every_s" -u "$silence" && kill -0 $$ 2>/dev/null; do
        size=$(du -sk "$directory" 2>/dev/null | cut -f1)
        if [ "$((${size:-0} - ${at_first:-0}))" -lt "$grown_kib" ]; then
            size="downloading"
        else
            size="installing, $((size / 1024)) MB so far"
        fi
        echo "  ... $((SECONDS - start)) s, $size"
    done 9>&- &
    teller=$!
    "$@" || status=$?
    kill "$teller"
    wait "$teller" 2>/dev/null || true
    exec {silence}>&-
    return "$status"
}

# venv_for DIRECTORY PYTHON PIP_ARGUMENTS...: makes it, or leaves it when nothing has changed.
venv_for() {
    local venv=$1 python=$2 interpreter stamp
    shift 2
    # Not its path: in an environment of somebody's, or a shim's, the same one has others.
    interpreter=$("$python" -c 'import os, sys; print(os.path.realpath(sys.base_prefix), sys.version)')
    stamp="$repo_dir $interpreter $* $(cat pyproject.toml scripts/*.txt | sha256sum)"
    if [ "$(cat "$venv/stamp" 2>/dev/null)" = "$stamp" ] && "$venv/bin/python" -c '' 2>/dev/null; then
        return
    fi
    echo "installing into $venv with $("$python" --version); a few minutes the first time"
    make_venv "$python" "$venv"
    # -qq hides notes about package indexes of this machine, not errors.
    and_tell "$venv" "$venv/bin/python" -m pip install -qq "$@" ||
        die "pip could not install into $venv"
    echo "$stamp" >"$venv/stamp"
}

# One set-up at a time, if the demo and the tests are started together.
with_setup_lock() {
    mkdir -p .setup
    ( flock 9 && "$@" ) 9>.setup/lock
}

# What of ray[default] exports metrics. Beside .venv, for the tests that name it: with these packages
# every Ray that is started would start more processes.
install_metrics() {
    local wanted=tests/local/metrics-packages.txt
    cmp -s "$wanted" .setup/metrics/packages.txt && return
    rm -rf .setup/metrics
    .venv/bin/python -m pip install -qq --target .setup/metrics -r "$wanted" ||
        die "pip could not install what $wanted names"
    cp "$wanted" .setup/metrics/packages.txt
}

# Debian's sshd, where there is none: not installed, as that would start it for all who reach this
# machine.
extract_sshd() {
    local target=.setup/openssh
    [ -z "$(PATH=$PATH:/usr/sbin command -v sshd)" ] && [ ! -d "$target" ] &&
        command -v apt-get >/dev/null || return 0
    rm -rf "$target.new"
    mkdir -p "$target.new"
    [ "$(id -u)" != 0 ] || apt-get update -qq
    (cd "$target.new" && apt-get download -qq -o APT::Sandbox::User=root openssh-server libwrap0 &&
        for package in *.deb; do dpkg -x "$package" . && rm "$package" || exit 1; done) ||
        die "apt-get could not download openssh-server"
    mv "$target.new" "$target"
}

# Servers for tests that are no Python packages.
install_servers() {
    local missing=()
    command -v npm >/dev/null || missing+=(npm)
    command -v xrootd >/dev/null || missing+=(xrootd-server)
    apt_install "${missing[@]}"
    extract_sshd
    cmp -s tests/stores/package.json .setup/package.json && [ -d .setup/node_modules ] && return
    rm -rf .setup/node_modules
    cp tests/stores/package.json .setup/package.json.new
    mv .setup/package.json.new .setup/package.json
    npm install --prefix .setup --silent --no-audit --no-fund --no-package-lock ||
        { rm -f .setup/package.json && die "npm could not install what tests/stores/package.json names"; }
}

# A virtual machine with an RDMA device made of software, for tests.
install_guest() {
    local missing
    missing=$(.venv/bin/python -c 'from tests.verbs.image import missing; print(*missing())')
    # shellcheck disable=SC2086 # names of packages
    apt_install $missing
    .venv/bin/python -m tests.verbs.image || echo "no guest: the tests of RDMA will fail; see above"
}

setup_main() {
    local python
    python=$(find_python 10 13) || die "Python 3.10 to 3.13 is needed; on Debian: apt install python3"
    install_debian_packages "$python"
    venv_for .venv "$python" -e '.[dev]'
}

setup_lowest() {
    local python constraints=scripts/lowest-constraints.txt
    if ! python=$(find_python 10 12); then
        python=$(find_python 13 13) || die "Python 3.10 to 3.13 is needed"
        constraints=scripts/lowest-constraints-3.13.txt
    fi
    venv_for .venv-lowest "$python" -c "$constraints" -e '.[test]'
}

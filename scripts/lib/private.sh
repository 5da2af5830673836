# shellcheck shell=bash
# Shared by private-redis and private-rabbitmq: ports, pid files and owners. Linux only (/proc).
#
# Ports come in blocks of 16 below the ephemeral range (32768), so that no outgoing connection of
# another process occupies one when a server comes back to it.

die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# Sets `started` to the time when process $1 started, in ticks since boot. Fails if it is gone or a
# zombie. Together with the pid this identifies a process, because pids are reused. It starts no
# subshell, since watchdogs call it all the time.
started_at() {
  local stat fields
  started=
  { IFS='' read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
  read -ra fields <<<"${stat##*) }"
  [[ ${fields[0]} != [ZX] ]] || return 1
  started=${fields[19]}
}

# Writes process $2 to the file $1.
write_pid() {
  local started
  started_at "$2" || true
  printf '%s %s\n' "$2" "${started:-gone}" >"$1"
}

# Prints the pid in the file $1 if that same process still runs.
live_pid() {
  local pid since started
  [[ -s $1 ]] || return 1
  read -r pid since <"$1" || return 1
  started_at "$pid" && [[ $started == "$since" ]] || return 1
  printf '%s\n' "$pid"
}

# Sends signal $2 to the process group led by the process in the file $1.
signal_group() {
  local pid
  pid=$(live_pid "$1") || return 0
  kill -"$2" -- "-$pid" 2>/dev/null || true
}

# Freezes the process group led by the process in the file $1, and waits until it is frozen. The
# signal reaches one thread, which on a busy machine may wait for a processor while the others run
# on.
freeze_group() {
  local pid until=$((SECONDS + 10))
  pid=$(live_pid "$1") || return 0
  signal_group "$1" STOP
  while runs "$pid"; do
    if ((SECONDS > until)); then
      signal_group "$1" CONT
      die "it can't be frozen"
    fi
    sleep 0.01
  done
}

# Succeeds if a thread of the process group $1 is neither stopped nor dead.
runs() {
  local file stat fields
  for file in /proc/[0-9]*/task/*/stat; do
    { IFS='' read -r stat <"$file"; } 2>/dev/null || continue # gone meanwhile
    read -ra fields <<<"${stat##*) }"
    [[ ${fields[2]} != "$1" || ${fields[0]} == [TtZX] ]] || return 0
  done
  return 1
}

# Waits until the process in the file $1 is gone, at most $2 seconds.
wait_gone() {
  local until=$((SECONDS + $2))
  while live_pid "$1" >/dev/null; do
    ((SECONDS <= until)) || return 1
    sleep 0.02
  done
}

# Waits until no process listens on port $1, at most $2 seconds. A killed process is a zombie as
# soon as its first thread has ended, and its sockets stay open until the last one has. On a busy
# machine that takes a while.
wait_closed() {
  local until=$((SECONDS + $2))
  while port_is_open "$1"; do
    ((SECONDS <= until)) || return 1
    sleep 0.02
  done
}

port_is_open() {
  (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# Takes a block of ports for the server in the folder $1, and prints its first port. No other server
# gets the block while the folder exists: clients may still know the address of a killed server, and
# it may come back there.
take_block() {
  local blocks=${TMPDIR:-/tmp}/sluicegate-ports lock try port offset
  mkdir -p "$blocks"
  exec {lock}>"$blocks/lock"
  flock "$lock"
  for ((try = 0; try < 200; try++)); do
    port=$((20000 + 16 * (RANDOM % 768)))
    [[ ! -e $blocks/$port ]] || continue # a link to a folder that is gone does not exist
    for offset in 0 1 2; do
      port_is_open $((port + offset)) && continue 2
    done
    ln -sfn "$(realpath "$1")" "$blocks/$port"
    exec {lock}>&-
    printf '%s\n' "$port"
    return
  done
  die "found no free ports between 20000 and 32287"
}

# Starts a server in the background, in a process group of its own, which can be killed and which
# Ctrl-C does not reach. It stays in this session: Linux divides the processors among sessions first,
# and a session that mostly sleeps gets too little beside busy ones.
start_server() {
  set -m
  "$@" </dev/null &
  set +m
}

# Starts a watchdog that removes the server and its folder as soon as process $2 ends, however it
# ends.
own() {
  local dir=$1 owner=$2 started
  live_pid "$dir/watchdog.pid" >/dev/null && return
  started_at "$owner" || die "the owner, process $owner, does not run"
  setsid "$0" watch "$dir" "$owner" "$started" </dev/null >/dev/null 2>&1 &
  write_pid "$dir/watchdog.pid" $!
}

# The watchdog: ends when the folder is gone, and removes it when the owner is. Many watchdogs run
# at once, so it starts no program: a read from a pipe that never has data does the sleeping.
watch() {
  local dir=$1 owner=$2 since=$3 never started
  exec {never}<> <(:)
  while [[ -d $dir ]]; do
    { started_at "$owner" && [[ $started == "$since" ]]; } || exec "$0" remove "$dir"
    read -rt 1 -u "$never" || true
  done
}

# Parses `start DIR [options]` into: dir, port, owner, join, extra (an array of settings).
# shellcheck disable=SC2034 # some of them are for one kind of server
parse_start() {
  dir='' port='' owner='' join='' extra=()
  while (($#)); do
    case $1 in
      --port) port=${2:?--port needs a port}; shift ;;
      --owner) owner=${2:?--owner needs a process id}; shift ;;
      --join) join=${2:?--join needs a folder}; shift ;;
      --set) extra+=("${2:?--set needs a setting}"); shift ;;
      -*) die "unknown option $1" ;;
      *) [[ -z $dir ]] || die "one folder only, not also $1"; dir=$1 ;;
    esac
    shift
  done
  [[ $dir == /* ]] || die "the folder must be an absolute path"
}

#!/bin/sh
# Installs NebulaGrid's agent on this machine and lets it join. An admin gets the line to paste from
#   nebula-ctl node add NAME
# Everything is one function that is called on the last line: a download that was cut does nothing.

nebula_install() {
  if [ "${1:-}" != complete ]; then return 0; fi
  shift
  set -eu
  umask 022

  usage() {
    cat <<'USAGE'
usage: install.sh --controller-endpoint URL [--token-file FILE] [options]

  --controller-endpoint URL  the control plane, https://HOST[:PORT]
  --token-file FILE   file with the one-use token; - reads standard input. Without it the token is asked for.
  --token TOKEN       the token itself (everybody on this machine can see it in the process list: prefer --token-file)
  --name NAME         name of this node (the token's, else the host name)
  --ca-sha256 HASH    SHA-256 of the control plane's own CA, which is then fetched from /ca.pem and checked
  --ca-file FILE      that CA as a file
  --user              install for the present user, without root
  --prefix DIR        where the programs go (/opt/nebulagrid)
  --config-dir DIR    where agent.toml and the credential go (/etc/nebulagrid)
  --data-dir DIR      where the agent keeps its ranks (/var/lib/nebulagrid/agent)
  --backend KIND      auto, nvml, level_zero, ascend, amd, simulated or none (auto)
  --scenario FILE     scenario of the simulated backend
  --identity KIND     who jobs run as: shared (one account, nebulagrid-jobs, made if it is missing) or mapped (their owner's own); (shared)
  --metrics-only      the node only reports its cards and its load; no job ever comes to it
  --python PROGRAM    Python 3.11 or newer
  --re-enroll         join again, with a new token, though this machine has a credential
  --no-service        install and enrol, start nothing
  --print-unit        print the systemd unit and do nothing else
  --uninstall         stop the agent and remove it; --purge removes its data too, --force does it while jobs run

A second run upgrades: the new version is made beside the old one, jobs that run go on.
USAGE
  }
  say() { printf '%s\n' "nebulagrid: $*"; }
  warn() { printf '%s\n' "nebulagrid: warning: $*" >&2; }
  fail() {
    printf '%s\n' "nebulagrid: $*" >&2
    exit 1
  }

  # --- 1. What is wanted ------------------------------------------------------------------------------------------
  endpoint='' token='' token_file='' node_name='' ca_hash='' ca_file='' identity='' user_mode='' prefix='' config_dir='' data_dir=''
  backend='' scenario='' metrics_only='' python='' re_enroll='' service=yes mode=install purge='' force=''
  while [ $# -gt 0 ]; do
    option=$1
    case $option in
      --*=*)
        value=${option#*=}
        option=${option%%=*}
        shift
        set -- "$option" "$value" "$@"
        ;;
    esac
    case $option in
      --user | --metrics-only | --re-enroll | --no-service | --print-unit | --uninstall | --purge | --force | --help | -h) ;;
      --controller-endpoint | --endpoint | --token-file | --token | --name | --ca-sha256 | --ca-file | --prefix | --config-dir | --data-dir | \
        --backend | --identity | --scenario | --python) [ $# -ge 2 ] || fail "$option needs a value; --help shows all options" ;;
      *) fail "'$option' is not an option; --help shows all" ;;
    esac
    case $option in
      --controller-endpoint | --endpoint) endpoint=$2 ;;
      --token-file) token_file=$2 ;;
      --token) token=$2 ;;
      --name) node_name=$2 ;;
      --ca-sha256) ca_hash=$2 ;;
      --ca-file) ca_file=$2 ;;
      --prefix) prefix=$2 ;;
      --config-dir) config_dir=$2 ;;
      --data-dir) data_dir=$2 ;;
      --backend) backend=$2 ;;
      --identity) identity=$2 ;;
      --scenario) scenario=$2 ;;
      --python) python=$2 ;;
      --user) user_mode=yes ;;
      --metrics-only) metrics_only=yes ;;
      --re-enroll) re_enroll=yes ;;
      --no-service) service='' ;;
      --print-unit) mode=unit ;;
      --uninstall) mode=uninstall ;;
      --purge) purge=yes ;;
      --force) force=yes ;;
      --help | -h)
        usage
        return 0
        ;;
    esac
    case $option in
      --user | --metrics-only | --re-enroll | --no-service | --print-unit | --uninstall | --purge | --force) shift ;;
      *) shift 2 ;;
    esac
  done
  if [ -n "$user_mode" ]; then
    # A service or a container may start without HOME; the account's own folder is in the password database then.
    if [ -z "${HOME:-}" ]; then HOME=$(getent passwd "$(id -u)" 2>/dev/null | cut -d: -f6 || true); fi
    if [ -z "$HOME" ] && { [ -z "$prefix" ] || [ -z "$config_dir" ] || [ -z "$data_dir" ]; }; then
      fail "--user installs below your home, and HOME is not set: set it, or give --prefix, --config-dir and --data-dir"
    fi
    : "${prefix:=$HOME/.local/share/nebulagrid}" "${config_dir:=$HOME/.config/nebulagrid}"
    : "${data_dir:=$HOME/.local/state/nebulagrid/agent}"
  fi
  : "${prefix:=/opt/nebulagrid}" "${config_dir:=/etc/nebulagrid}" "${data_dir:=/var/lib/nebulagrid/agent}"
  for folder in "$prefix" "$config_dir" "$data_dir"; do
    case $folder in
      /) fail "a folder of its own is needed, not /" ;;
      *[!A-Za-z0-9/._-]*) fail "'$folder' can't be used: folders may hold letters, digits, '.', '_' and '-'" ;;
      /*) ;;
      *) fail "'$folder' must be an absolute path" ;;
    esac
  done
  # From here on nothing is looked up in the folder that this was started in: Python would find modules of anybody there who may
  # write to it. The same goes for what the environment adds to Python (-I below).
  here=$PWD
  absolute() { case $1 in '' | - | /*) printf '%s' "$1" ;; *) printf '%s' "$here/$1" ;; esac; }
  token_file=$(absolute "$token_file") ca_file=$(absolute "$ca_file") scenario=$(absolute "$scenario")
  case $python in */*) python=$(absolute "$python") ;; esac
  cd /
  config=$config_dir/agent.toml
  daemon=$prefix/nebula-agentd
  unit=/etc/systemd/system/nebula-agent.service

  # Nobody but us may be able to replace a folder that programs are run from, or anything above it.
  folder_check() {
    above=$1
    while :; do
      if [ -d "$above" ]; then
        found=$(stat -L -c '%a %u' "$above" 2>/dev/null) || found=''
        case ${found%% *} in
          *[2367]) [ -k "$above" ] || fail "everybody may write to $above: what is installed in $1 could be replaced; chmod o-w $above" ;;
        esac
        case $(id -u):${found##* } in
          0:0 | 0:65534 | 0:) ;;
          0:*) fail "$above belongs to another user, who could replace what is installed in $1; chown root $above" ;;
        esac
      fi
      [ "$above" != / ] || break
      above=$(dirname "$above")
    done
  }

  has_systemd() { [ -z "$user_mode" ] && [ -d /run/systemd/system ] && command -v systemctl >/dev/null 2>&1; }

  unit_text() {
    cat <<UNIT
[Unit]
Description=NebulaGrid agent: runs this node's share of the jobs
Wants=network-online.target
After=network-online.target nvidia-persistenced.service
StartLimitIntervalSec=0

[Service]
ExecStart=$prefix/current/bin/nebula-agent run --config $config
Restart=always
RestartSec=2
# 3: a newer agent speaks for this node; two would only push each other out.
RestartPreventExitStatus=3
# Jobs outlive the agent: a restart or an upgrade must not touch their processes.
KillMode=process
# The agent makes a cgroup for each job beside its own. Before systemd 254 it is below, where memory and CPU can't be limited.
Delegate=yes
DelegateSubgroup=agent
TasksMax=infinity
LimitNOFILE=65536
OOMScoreAdjust=-500

[Install]
WantedBy=multi-user.target
UNIT
  }

  daemon_text() {
    cat <<DAEMON
#!/bin/sh
# Keeps the agent running where no systemd does: nebula-agentd start | stop | restart | status
bin=$prefix/current/bin/nebula-agent
config=$config
data=$data_dir
DAEMON
    cat <<'DAEMON'
pid_file=$data/agentd.pid
log_file=$data/agentd.log

running() {
  pid=$(cat "$pid_file" 2>/dev/null) && [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null &&
    tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q nebula-agentd
}

loop() {
  child= stopping=
  trap 'stopping=yes; [ -n "$child" ] && kill -TERM "$child" 2>/dev/null' TERM INT HUP
  wait_s=1
  while [ -z "$stopping" ]; do
    began=$(date +%s)
    "$bin" run --config "$config" &
    child=$!
    wait "$child"
    code=$?
    # A signal ends the first wait; the second one sees the agent's own end.
    if [ -n "$stopping" ]; then wait "$child" 2>/dev/null; break; fi
    if [ "$code" = 3 ]; then echo "nebula-agentd: a newer agent speaks for this node; this one stays down"; break; fi
    if [ $(($(date +%s) - began)) -ge 30 ]; then wait_s=1; fi
    echo "nebula-agentd: the agent ended with status $code; starting it again in $wait_s s"
    sleep "$wait_s" &
    wait $!
    wait_s=$((wait_s < 30 ? wait_s * 2 : 30))
  done
  rm -f "$pid_file"
}

start() {
  if running; then echo "nebula-agentd: runs already (process $pid)"; return 0; fi
  mkdir -p "$data" && chmod 700 "$data" || return 1
  # Not our terminal's, and no older than 10 MB.
  if [ -f "$log_file" ] && [ "$(wc -c <"$log_file")" -gt 10000000 ]; then mv -f "$log_file" "$log_file.1"; fi
  setsid "$0" loop </dev/null >>"$log_file" 2>&1 &
  echo $! >"$pid_file"
}

stop() {
  running || { rm -f "$pid_file"; return 0; }
  kill -TERM "$pid"
  tries=0
  while kill -0 "$pid" 2>/dev/null && [ "$tries" -lt 150 ]; do sleep 0.1; tries=$((tries + 1)); done
  if kill -0 "$pid" 2>/dev/null; then echo "nebula-agentd: process $pid did not stop within 15 s" >&2; return 1; fi
}

case ${1:-} in
  loop)
    echo $$ >"$pid_file"
    loop
    ;;
  start) start ;;
  stop) stop ;;
  restart) stop && start ;;
  status) if running; then echo "runs (process $pid)"; else echo "does not run"; exit 3; fi ;;
  *)
    echo "usage: nebula-agentd start | stop | restart | status" >&2
    exit 2
    ;;
esac
DAEMON
  }

  if [ "$mode" = unit ]; then
    unit_text
    return 0
  fi
  if [ "$mode" = install ] && [ -z "$endpoint" ]; then fail "--controller-endpoint is missing; --help shows all options"; fi
  if [ -z "$user_mode" ] && [ "$(id -u)" != 0 ]; then
    fail "root is needed (sudo); to install for $(id -un) alone, add --user"
  fi

  # --- 2. Removing ------------------------------------------------------------------------------------------------
  if [ "$mode" = uninstall ]; then
    if [ ! -e "$prefix/current" ] && [ ! -e "$config" ]; then
      say "nothing is installed in $prefix"
      return 0
    fi
    if [ -z "$force" ] && [ -x "$prefix/current/bin/nebula-agent" ] && [ -e "$config" ] &&
      "$prefix/current/bin/nebula-agent" status --json --config "$config" 2>/dev/null | grep -Eq '"state": "(RUNNING|PREPARING)"'; then
      fail "jobs run on this node; drain it first (nebula-ctl node drain), or add --force: they would go on with nobody to report them"
    fi
    if has_systemd && [ -e "$unit" ]; then
      systemctl disable --now nebula-agent.service >/dev/null 2>&1 || warn "systemctl could not stop nebula-agent.service"
      rm -f "$unit"
      systemctl daemon-reload || :
    fi
    if [ -x "$daemon" ]; then "$daemon" stop || fail "the agent did not stop; nothing was removed"; fi
    for name in nebula-agent nebula-ctl; do
      if [ "$(readlink "/usr/local/bin/$name" 2>/dev/null)" = "$prefix/current/bin/$name" ]; then rm -f "/usr/local/bin/$name"; fi
    done
    rm -rf "$prefix"
    rm -f "$config" "$config_dir/agent.credential" "$config_dir/ca.pem"
    rmdir "$config_dir" 2>/dev/null || :
    if [ -n "$purge" ]; then
      rm -rf "$data_dir" "$data_dir-jobs"
      rmdir "$(dirname "$data_dir")" 2>/dev/null || :
      say "removed, with its data"
    else
      say "removed; its data is still in $data_dir (--purge removes it too)"
    fi
    return 0
  fi

  # --- 3. Can it work here? Nothing is written before all of this is known -------------------------------------------
  endpoint=${endpoint%/}
  case $endpoint in
    *[!A-Za-z0-9:/._~%\[\]-]*) fail "the endpoint '$endpoint' is not a URL such as https://grid.example.org" ;;
    https://?*) ;;
    http://127.0.0.1 | http://127.0.0.1[:/]* | http://localhost | http://localhost[:/]* | 'http://[::1]'*) ;;
    http://*) fail "plain http would send this node's credential in the clear; use https:// (docs/install.md)" ;;
    *) fail "the endpoint '$endpoint' must look like https://HOST[:PORT]" ;;
  esac
  case $ca_hash in
    '') ;;
    *[!0-9a-fA-F]*) fail "--ca-sha256 must be 64 hexadecimal digits" ;;
    *) [ "${#ca_hash}" = 64 ] || fail "--ca-sha256 must be 64 hexadecimal digits; this has ${#ca_hash}" ;;
  esac
  case $node_name in *[!A-Za-z0-9._-]*) fail "--name may hold letters, digits, '.', '_' and '-'" ;; esac
  [ "$(uname -s)" = Linux ] || fail "the agent runs on Linux; this is $(uname -s)"
  for program in curl sha256sum awk setsid; do
    command -v "$program" >/dev/null 2>&1 || fail "the program $program is missing; install it and run this again"
  done
  found=''
  for candidate in "$python" python3 python3.14 python3.13 python3.12 python3.11; do
    if [ -n "$candidate" ] && "$candidate" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      found=$candidate
      break
    fi
    if [ -n "$python" ] && [ "$candidate" = "$python" ]; then fail "$python is not Python 3.11 or newer"; fi
  done
  [ -n "$found" ] || fail "no Python 3.11 or newer was found; install one, or name it with --python"
  python=$found
  "$python" -I -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$python can't make virtual environments; on Debian or Ubuntu: apt-get install python3-venv"
  for folder in "$prefix" "$config_dir" "$data_dir"; do folder_check "$folder"; done
  above=$prefix
  while [ ! -d "$above" ]; do above=$(dirname "$above"); done
  free_kib=$(df -Pk "$above" | awk 'NR == 2 {print $4}')
  [ "$free_kib" -ge 200000 ] || fail "$above has $((free_kib / 1024)) MiB free; 200 MiB are needed"

  enrolled=''
  if [ -e "$config" ] && [ -e "$config_dir/agent.credential" ] && [ -z "$re_enroll" ]; then
    enrolled=$(sed -n 's/^endpoint = "\(.*\)"$/\1/p' "$config")
    : "${enrolled:=unknown}"
    # The agent writes the port out.
    case $enrolled in
      "$endpoint" | "$endpoint":443 | "$endpoint":80) ;;
      *) fail "this machine belongs to $enrolled; --uninstall it first, or add --re-enroll with a new token" ;;
    esac
  fi
  if [ -n "$token" ]; then warn "a token on the command line is seen by every user of this machine; use --token-file"; fi
  if [ -n "$enrolled" ]; then
    if [ -n "$token$token_file" ]; then say "this machine has joined already; the token is not used"; fi
    if [ -n "$metrics_only" ] && ! grep -q '^mode = "metrics"$' "$config"; then
      warn "this machine has joined already, to run jobs: --metrics-only changes nothing; write mode = \"metrics\" into $config instead"
    fi
  elif [ -z "$token" ]; then
    case $token_file in
      '')
        if ! { : </dev/tty; } 2>/dev/null; then fail "give the token with --token-file FILE (nebula-ctl node add NAME makes one)"; fi
        printf 'Enrolment token: ' >/dev/tty
        stty -echo </dev/tty
        IFS= read -r token </dev/tty || :
        stty echo </dev/tty
        printf '\n' >/dev/tty
        ;;
      -) IFS= read -r token || : ;;
      *)
        [ -r "$token_file" ] || fail "the token file $token_file can't be read"
        IFS= read -r token <"$token_file" || :
        ;;
    esac
    [ -n "$token" ] || fail "the token is empty"
  fi

  # --- 4. From here on, what fails takes back what it made -----------------------------------------------------------
  made='' finished='' work=$(mktemp -d)
  chmod 700 "$work"
  folder_check "$work"
  cleanup() {
    code=$?
    rm -rf "$work"
    if [ -z "$finished" ]; then
      for entry in $made; do
        case $entry in
          dir:*) rmdir "${entry#dir:}" 2>/dev/null || : ;;
          *) rm -rf "${entry#all:}" ;;
        esac
      done
      if [ "$code" != 0 ]; then printf '%s\n' 'nebulagrid: not installed; nothing was left behind' >&2; fi
    fi
    return "$code"
  }
  trap cleanup EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  # Folders that were not there before go again, innermost first; a folder with something else in it stays.
  folder_make() {
    missing=$1 chain=''
    while [ ! -d "$missing" ]; do
      chain="$chain dir:$missing"
      missing=$(dirname "$missing")
    done
    made="$chain $made"
    mkdir -p "$1"
  }

  # The CA is fetched unverified, then held against its hash; everything else is verified by it.
  fetch() { curl -fsS --noproxy '*' --connect-timeout 10 --max-time 300 --retry 2 "$@"; }
  trust=''
  if [ -n "$ca_file" ]; then
    [ -r "$ca_file" ] || fail "the CA file $ca_file can't be read"
    cp "$ca_file" "$work/ca.pem"
    trust=$work/ca.pem
  elif [ -n "$ca_hash" ]; then
    fetch -k -o "$work/ca.pem" "$endpoint/ca.pem" || fail "$endpoint/ca.pem can't be fetched; is the endpoint right and reached from here?"
    trust=$work/ca.pem
  elif [ -n "$enrolled" ] && [ -e "$config_dir/ca.pem" ]; then
    cp "$config_dir/ca.pem" "$work/ca.pem"
    trust=$work/ca.pem
  fi
  if [ -n "$ca_hash" ]; then
    found=$(sha256sum <"$work/ca.pem" | cut -d' ' -f1)
    [ "$found" = "$(printf '%s' "$ca_hash" | tr A-F a-f)" ] ||
      fail "the CA of $endpoint has SHA-256 $found, not $ca_hash: somebody may be in between, or the CA was replaced; nothing was sent"
  fi
  get() {
    # $1 path, $2 file
    if [ -n "$trust" ]; then fetch --cacert "$trust" -o "$2" "$endpoint$1"; else fetch -o "$2" "$endpoint$1"; fi
  }

  say "fetching the agent from $endpoint"
  mkdir "$work/wheels"
  get /dist/ "$work/index" || fail "$endpoint/dist/ can't be fetched (its certificate may need --ca-sha256)"
  while read -r digest file; do
    case $file in '' | *[!A-Za-z0-9._+-]* | .*) fail "$endpoint/dist/ names a strange file" ;; esac
    get "/dist/$file" "$work/wheels/$file" || fail "$endpoint/dist/$file can't be fetched"
    [ "$(sha256sum <"$work/wheels/$file" | cut -d' ' -f1)" = "$digest" ] || fail "$file arrived damaged; run this again"
  done <"$work/index"

  # A venv of its own for each version; `current` names the one in use and is switched in one step.
  version=venv-$(date +%Y%m%d%H%M%S)-$$
  folder_make "$prefix"
  made="all:$prefix/$version $made"
  say "installing into $prefix/$version ($("$python" --version 2>&1))"
  "$python" -I -m venv "$prefix/$version" >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    fail "the virtual environment can't be made"
  }
  pip() { "$prefix/$version/bin/python" -I -m pip --disable-pip-version-check --no-input install --quiet --find-links "$work/wheels" "$@" >"$work/log" 2>&1; }
  if pip --no-index nebulagrid-agent; then
    :
  elif pip --retries 1 --timeout 10 nebulagrid-agent; then
    say "some packages came from this machine's package index"
  elif pip --no-index --no-deps nebulagrid-agent websocket-client nvidia-ml-py; then
    warn "packages of nebula-ctl are missing for this Python and no package index is reached: the agent works, nebula-ctl doesn't"
  else
    cat "$work/log" >&2
    fail "the agent's packages can't be installed"
  fi
  "$prefix/$version/bin/nebula-agent" --version >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    fail "the installed agent does not start"
  }

  # --- 5. Join -------------------------------------------------------------------------------------------------------
  folder_make "$config_dir"
  if [ -n "$trust" ]; then
    if [ ! -e "$config_dir/ca.pem" ]; then made="all:$config_dir/ca.pem $made"; fi
    cp "$trust" "$config_dir/.ca.pem.$$"
    mv -f "$config_dir/.ca.pem.$$" "$config_dir/ca.pem"
  fi
  if [ -z "$enrolled" ]; then
    set -- --endpoint "$endpoint" --config "$config" --data-dir "$data_dir" --token-file -
    if [ -n "$trust" ]; then set -- "$@" --ca-file "$config_dir/ca.pem"; fi
    if [ -n "$node_name" ]; then set -- "$@" --name "$node_name"; fi
    if [ -n "$backend" ]; then set -- "$@" --backend "$backend"; fi
    if [ -n "$identity" ]; then set -- "$@" --identity "$identity"; fi
    if [ -n "$scenario" ]; then set -- "$@" --scenario "$scenario"; fi
    if [ -n "$metrics_only" ]; then set -- "$@" --mode metrics; fi
    # printf is the shell's own: the token is in no process list.
    printf '%s\n' "$token" | "$prefix/$version/bin/nebula-agent" enroll "$@" || fail "this machine could not join"
    token=''
  fi
  finished=yes # the credential is there: from now on a fault is mended by running this again

  # --- 6. Switch and start -----------------------------------------------------------------------------------------
  ln -s "$version" "$prefix/.current.$$"
  mv -Tf "$prefix/.current.$$" "$prefix/current"
  daemon_text >"$daemon.new"
  chmod 755 "$daemon.new"
  mv -f "$daemon.new" "$daemon"
  for name in nebula-agent nebula-ctl; do
    if [ -z "$user_mode" ] && [ "$prefix" = /opt/nebulagrid ] && [ ! -e "/usr/local/bin/$name" ]; then
      ln -s "$prefix/current/bin/$name" "/usr/local/bin/$name" 2>/dev/null || :
    fi
  done
  if has_systemd; then
    unit_text >"$unit.new"
    mv -f "$unit.new" "$unit"
    systemctl daemon-reload
  fi
  if [ -z "$service" ]; then
    say "installed; start the agent with: $prefix/current/bin/nebula-agent run --config $config"
    return 0
  fi
  if has_systemd; then
    systemctl enable nebula-agent.service >/dev/null 2>&1 || warn "nebula-agent.service could not be enabled"
    systemctl restart nebula-agent.service || fail "nebula-agent.service does not start; see journalctl -u nebula-agent"
    logs='journalctl -u nebula-agent'
  else
    "$daemon" restart || fail "the agent does not start; see $data_dir/agentd.log"
    say "no systemd here: $daemon keeps the agent running; call '$daemon start' at boot (cron: @reboot $daemon start)"
    logs="$data_dir/agentd.log"
  fi
  tries=0
  until "$prefix/current/bin/nebula-agent" status --config "$config" 2>/dev/null | grep -q 'last answer'; do
    tries=$((tries + 1))
    if [ "$tries" -ge 40 ]; then
      warn "the agent runs but has had no answer from $endpoint within 20 s; see $logs"
      break
    fi
    sleep 0.5
  done
  # Older versions go once no process runs from them: the jobs' watchers are forked from the agent that started them.
  for old in "$prefix"/venv-*; do
    # [v]: the pattern must not find itself in grep's own command line.
    if [ "$old" != "$prefix/$version" ] && ! grep -qs -- "$prefix/[v]${old#"$prefix"/v}/" /proc/[0-9]*/cmdline; then rm -rf "$old"; fi
  done
  if [ "$(id -u)" = 0 ]; then warn "the agent runs as root, and so do its jobs; give accounts only to people whom you would give root here"; fi
  say "done; this node shows in nebula-ctl node list"
}

nebula_install complete "$@"

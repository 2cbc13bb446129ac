#!/usr/bin/env bash
# The test itself, as root under systemd in the machine of scripts/vm/units-vm-test.sh. guest.sh PHASE SLOWNESS: 1 installs, and ends with the power cut
# while services are under control; 2 is the boot after it, and removes. One line for each thing shown: "ok" or "FAILED".
set -uo pipefail

share=/run/share
services=(web store batch)
cgroups=/sys/fs/cgroup/system.slice
resctrl=/run/resctrl
config=/etc/surefoot/node.toml
state=/var/lib/surefoot
slowness=$2
failures=0

note() { printf 'surefoot-vm: %s\n' "$*"; }
ok() { printf 'ok      %s\n' "$*"; }
failed() {
  printf 'FAILED  %s\n' "$*"
  failures=$((failures + 1))
}
# check WHAT COMMAND...: the command holds now.
check() { local what=$1; shift; if "$@"; then ok "$what"; else failed "$what"; fi; }
# eventually SECONDS WHAT COMMAND...: it comes to hold; SECONDS only end a wait that is in vain.
until_true() {
  # What is asked for often must not need processes: the daemon shares the CPUs.
  local pause=0.5
  [ "$2" != safe_in_force ] || pause=0.05
  local limit=$((SECONDS + $1 * slowness))
  shift
  until "$@"; do [ "$SECONDS" -lt "$limit" ] || return 1; read -rt "$pause" <>/run/never; done
  # Not that of the last read.
  return 0
}
eventually() {
  local limit=$1 what=$2
  shift 2
  if until_true "$limit" "$@"; then ok "$what"; return; fi
  failed "$what"
  journalctl -b --no-pager -o short-monotonic -n 30 -u surefootd -u surefootd-actuator
  state_of_all
}
not() { ! "$@"; }
same() { [ "$1" = "$2" ] || { diff <(printf '%s\n' "$1") <(printf '%s\n' "$2"); return 1; }; }
differ() { [ "$1" != "$2" ]; }

# What control may change, of every service that runs, and every group of resctrl with the services that are in it.
state_of() {
  local s f v group
  for s in "$@"; do
    [ -d "$cgroups/$s.service" ] || continue
    for f in cpuset.cpus cpuset.mems cpuset.cpus.partition cpu.max cpu.weight memory.max memory.high memory.zswap.max; do
      v=
      { read -r v <"$cgroups/$s.service/$f"; } 2>/dev/null
      printf '%s %s %s\n' "$s" "$f" "$v"
    done
    for group in "$resctrl" "$resctrl"/surefoot.*; do
      ! grep -qx "$(head -n 1 "$cgroups/$s.service/cgroup.procs")" "$group/tasks" 2>/dev/null || printf '%s in %s\n' "$s" "${group#"$resctrl"}"
    done
  done
}
classes() { [ ! -d $resctrl ] || (cd "$resctrl" && for g in surefoot.*; do [ ! -d "$g" ] || printf '%s %s\n' "$g" "$(tr '\n' ' ' <"$g/schemata")"; done; head -n 9 schemata mon_groups/* 2>/dev/null); }
state_of_all() { state_of "${services[@]}"; classes; }
# With few CPUs by quotas, whose period is not the kernel's usual one, else by classes.
placed() {
  local s v
  for s in "$@"; do
    v=
    { read -r v <"$cgroups/$s.service/cpu.max"; } 2>/dev/null
    [[ -n $v && $v != *" 100000" || -d $resctrl/surefoot.$s ]] || return 1
  done
}
# Without a process: it is asked twenty times a second. LC services as before Surefoot, the BE job at the least.
value_is() { local v=; { read -r v <"$1"; } 2>/dev/null; [ "$v" = "$2" ]; }
safe_in_force() {
  value_is "$cgroups/web.service/cpu.max" "150000 100000" && value_is "$cgroups/web.service/cpu.weight" 200 &&
    value_is "$cgroups/store.service/cpu.max" "max 100000" && value_is "$cgroups/store.service/cpu.weight" 100 &&
    value_is "$cgroups/batch.service/cpu.max" "1000 10000" && value_is "$cgroups/batch.service/cpu.weight" 1
}
safe_wholly() { local s; for s in web store; do same "${before[$s]}" "$(state_of "$s")" || return 1; done; }

main_pid() { systemctl show -P MainPID "$1"; }
is() { [ "$(systemctl show -P ActiveState "$1")" = "$2" ]; }
restarts() { systemctl show -P NRestarts surefootd; }
restarted() { [ "$(restarts)" -gt "$1" ] && is surefootd active; }
said() { journalctl -b --no-pager -o cat -u "$1" | grep -E "$2" >/dev/null; }
# How often a unit said something.
times_said() { journalctl -b --no-pager -o cat -u "$1" | grep -cE "$2"; }
said_more() { [ "$(times_said "$1" "$2")" -gt "$3" ]; }
metrics() {
  exec 3<>/dev/tcp/127.0.0.1/19464 || return 1
  printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
  cat <&3
  exec 3>&-
} 2>/dev/null
# Not grep -q: it would end before the other side of the pipe has.
metric() { metrics | grep -E "$1" >/dev/null; }
latency_ms() { printf 'web %s\nstore %s\n' "$1" "$2" >/run/latency.new && mv /run/latency.new /run/latency; }
status_field() { sed -n "s/^$2:[[:space:]]*\([^[:space:]]*\).*/\1/p" "/proc/$1/status"; }

# A unit of this test: unit NAME LINE...
unit() { local name=$1; shift; printf '%s\n' "$@" >"/etc/systemd/system/$name"; }
serve() {
  local name=$1
  shift
  # cpu and cpuset are enabled for it as the daemon's remedy says: AllowedCPUs= and CPUWeight=.
  unit "$name.service" "[Service]" "ExecStart=/bin/sleep infinity" "$@" "[Install]" "WantedBy=multi-user.target"
}
install_node() { "$share/archive/install.sh" >/run/install.log 2>&1 || { cat /run/install.log; return 1; }; }
node_services='
[[service]]
service = "web"
kind = "lc"
qos_target_ms = 10.0
cgroup = "/system.slice/web.service"
feed = { users = ["nobody"] }
[[service]]
service = "store"
kind = "lc"
qos_target_ms = 10.0
unit = "store.service"
feed = { users = ["nobody"] }
[[service]]
service = "batch"
kind = "be"
cgroup = "/system.slice/batch.service"'
# Top-level fields stand before the first table.
# A tick of 500 ms instead of 100: emulation has little CPU to spare.
configure() { sed "1i interval_ms = 500\n$1" $share/archive/etc/node.toml >$config && echo "$node_services" >>$config; }

# What carries the name, the test's own things apart.
found() { find / /run /run/lock -xdev -name '*surefoot*' ! -path '/etc/systemd/system/surefootd*.service.d' ! -path /run/share 2>/dev/null | sort | tr '\n' ' ' | sed 's/ $//'; }
# Whole cores: no LC service shares a CPU with the BE job.
apart() {
  local s own theirs
  own=" $(cpus_of batch) "
  for s in web store; do
    for theirs in $(cpus_of "$s"); do [[ $own != *" $theirs "* ]] || return 1; done
  done
}
cpus_of() {
  local part list=() parts
  IFS=, read -ra parts <"$cgroups/$1.service/cpuset.cpus"
  for part in "${parts[@]}"; do mapfile -t -O ${#list[@]} list < <(seq "${part%-*}" "${part#*-}"); done
  echo "${list[*]}"
}

declare -A before
remember() { local s; for s in "$@"; do before[$s]=$(state_of "$s"); done; }
all_as_before() { local s; for s in "${services[@]}"; do same "${before[$s]}" "$(state_of "$s")" || return 1; done; }
no_class() { [ -z "$(find "$resctrl" -mindepth 1 -maxdepth 1 -name 'surefoot.*')" ]; }
# Control goes on: what is in force follows the latency.
follows() {
  local was
  latency_ms 2 40
  until_true 60 said_latency store || return 1
  was=$(state_of_all)
  latency_ms 40 2
  until_true 60 differ_now "$was"
}
differ_now() { [ "$(state_of_all)" != "$1" ]; }
said_latency() { metric "^surefoot_latency_known\{[^}]*service=\"$1\"[^}]*\} 1"; }

kill_daemon() {
  local signal=$1 seconds=$2 what=$3 since begun took
  since=$(restarts)
  local resumed
  resumed=$(times_said surefootd "going on with the allocations")
  local pid
  pid=$(main_pid surefootd)
  eventually 60 "$what: before it, services are under control" not safe_in_force
  kill "-$signal" "$pid"
  begun=${EPOCHREALTIME/./}
  if [ "$signal" = STOP ]; then
    # The two seconds begin when systemd has killed it.
    eventually "$seconds" "$what: WatchdogSec has it killed" gone "$pid"
    begun=${EPOCHREALTIME/./}
  fi
  until_true 30 safe_in_force
  check "$what: the safe layout is in force" safe_in_force
  took=$(((${EPOCHREALTIME/./} - begun) / 1000))
  check "$what: ... $took ms after it, of $((2000 * slowness)) allowed" [ "$took" -le $((2000 * slowness)) ]
  check "$what: ... for LC services in every file" safe_wholly
  eventually 60 "$what: systemd starts it again" restarted "$since"
  eventually 60 "$what: it goes on with what was in force" said_more surefootd "going on with the allocations" "$resumed"
  check "$what: services are under control again" placed "${services[@]}"
  check "$what: allocations follow the latency again" follows
}
gone() { [ ! -d "/proc/$1" ] || [ "$(status_field "$1" State 2>/dev/null)" = Z ]; }

first_boot() {
  mkfifo /run/never
  latency_ms 2 2
  serve web CPUQuota=150% CPUWeight=200 AllowedCPUs=0-1
  serve store CPUWeight=100 AllowedCPUs=0-1
  serve batch CPUWeight=50 AllowedCPUs=0-1 MemoryHigh=300M
  unit standin.service "[Unit]" "Before=surefootd-actuator.service" "[Service]" \
    "ExecStartPre=/bin/mkdir -p $resctrl" "ExecStart=$share/archive/bin/surefootd resctrlfs $resctrl --platform $share/platform.toml" \
    "ExecStartPost=/bin/sh -c 'until [ -e $resctrl/schemata ]; do sleep 0.1; done'" "[Install]" "WantedBy=multi-user.target"
  unit feed.service "[Service]" "User=nobody" "ExecStart=/usr/bin/perl $share/feed.pl $state/feed.sock /run/latency" "Restart=always"
  mkdir -p /etc/systemd/system/surefootd-actuator.service.d
  # The kernel's resctrl would be in the unit's own list.
  printf '[Service]\nReadWritePaths=-%s\n' $resctrl >/etc/systemd/system/surefootd-actuator.service.d/standin.conf
  if [ "$slowness" -gt 1 ]; then
    mkdir -p /etc/systemd/system/surefootd.service.d
    printf '[Unit]\nStartLimitIntervalSec=%s\n[Service]\nWatchdogSec=%s\nTimeoutStopSec=%s\nTimeoutStartSec=%s\n' \
      $((60 * slowness)) $((5 * slowness)) $((10 * slowness)) $((90 * slowness)) >/etc/systemd/system/surefootd.service.d/slow.conf
    mkdir -p /etc/systemd/system/surefootd-actuator.service.d
    cp /etc/systemd/system/surefootd.service.d/slow.conf /etc/systemd/system/surefootd-actuator.service.d/
    sed -i '/^WatchdogSec/d' /etc/systemd/system/surefootd-actuator.service.d/slow.conf
  fi
  check "install.sh installs" install_node
  systemctl daemon-reload
  check "1 nothing is started by installing" is surefootd inactive
  systemctl start "${services[@]}"
  remember "${services[@]}"
  systemctl stop batch
  configure "cpus = \"0-1\""
  # 1 and 4: a service that comes after the daemon.
  check "1 systemctl start surefootd" systemctl start surefootd
  check "1 both are active" eval 'is surefootd active && is surefootd-actuator active'
  local pid
  pid=$(main_pid surefootd-actuator)
  check "1 the actuator is user 0" [ "$(status_field "$pid" Uid)" = 0 ]
  check "1 the actuator has no capability where there is no resctrl (CapEff $(status_field "$pid" CapEff))" [ "$(status_field "$pid" CapEff)" = 0000000000000000 ]
  check "1 ... and gains none (NoNewPrivs $(status_field "$pid" NoNewPrivs))" [ "$(status_field "$pid" NoNewPrivs)" = 1 ]
  check "1 its hardening is in force" not said surefootd-actuator "NOT in force"
  check "1 ... and the kernel keeps its lookups below the mounts" said surefootd-actuator "by the kernel \(openat2\)"
  pid=$(main_pid surefootd)
  check "1 the daemon is user surefoot" [ "$(status_field "$pid" Uid)" = "$(id -u surefoot)" ]
  check "1 the daemon has CAP_PERFMON alone (CapEff $(status_field "$pid" CapEff))" [ "$(status_field "$pid" CapEff)" = 0000004000000000 ]
  check "1 nobody else's CPUs go unnoticed: locks work" not said surefootd "would not be noticed"
  check "1 /metrics answers" metric '^surefoot_'
  eventually 60 "1 web and store are placed" placed web store
  check "4 a service that is not there is waited for" said surefootd "batch is waited for"
  systemctl start batch
  # Placed it is only when the others' latency is known: until then nothing is taken from them.
  eventually 60 "4 ... and taken up when it comes" said surefootd "batch is there again"
  note "warnings so far:"
  journalctl -b --no-pager -o cat -u surefootd -u surefootd-actuator | grep -E 'WARN|ERROR'

  # 6
  check "6 by default another user cannot write to feed.sock" not setpriv --reuid nobody --regid nogroup --clear-groups perl $share/feed.pl $state/feed.sock /run/latency once
  configure "cpus = \"0-1\"\nfeed_mode = \"0666\""
  # Debian's level 3, where CAP_PERFMON is not enough (docs/privileges.md).
  sysctl -q kernel.perf_event_paranoid=2
  check "6 systemctl restart surefootd, with another feed_mode" systemctl restart surefootd
  check "6 another user can, with feed_mode = \"0666\"" setpriv --reuid nobody --regid nogroup --clear-groups perl $share/feed.pl $state/feed.sock /run/latency once
  check "1 CAP_PERFMON is enough for counters with perf_event_paranoid=2" said surefootd "this machine has no performance counters"
  systemctl start feed
  eventually 60 "6 ... and its latency is known" said_latency web
  eventually 60 "1 all are placed" placed "${services[@]}"
  check "1 cpu.max follows the latency" follows

  kill_daemon KILL 10 "2 kill -9"
  kill_daemon STOP 60 "2 kill -STOP"

  # 4
  systemctl restart web
  eventually 60 "4 a service that is restarted is taken up again" placed web
  check "4 ... and allocations follow the latency" follows

  # 5
  check "5 systemctl stop surefootd" systemctl stop surefootd
  check "5 every value is back" all_as_before
  check "5 the safe layout is gone, nothing being in force" [ ! -e $state/safe.json ]

  # 3
  # The starts above count for the limit.
  systemctl reset-failed surefootd 2>/dev/null
  systemctl start surefootd
  eventually 60 "3 all are placed" placed "${services[@]}"
  local n killed=
  for n in 1 2 3 4 5 6; do
    until_true 60 up_or_failed
    ! is surefootd failed || break
    killed=$n
    kill -KILL "$(main_pid surefootd)"
    until_true 20 not is surefootd active
  done
  eventually 30 "3 a daemon that is killed $killed times in a row stays down" is surefootd failed
  check "3 ... because of the limit of starts, not of one failure" [ "$(systemctl show -P Result surefootd)" != success ]
  check "3 the safe layout is in force" safe_in_force
  check "3 ... for LC services in every file" safe_wholly
  check "5 surefootd reset after it" surefootd reset --config $config
  check "5 ... gives every value back" all_as_before
  check "5 ... and leaves no file that the daemon could not write" same "" "$(find $state ! -user surefoot)"
  systemctl reset-failed surefootd
  check "5 the daemon starts after a reset by root" systemctl start surefootd
  eventually 60 "5 ... and places all" placed "${services[@]}"

  # For the next boot: other values of their own, and the daemon comes by itself. Then the power goes.
  systemctl --quiet enable surefootd standin web
  serve web CPUQuota=250% CPUWeight=300 AllowedCPUs=0-6
  serve store CPUWeight=100 AllowedCPUs=0-6
  serve batch CPUWeight=50 AllowedCPUs=0-6
  configure "resctrl = \"$resctrl\"\nfeed_mode = \"0666\""
  check "5 the journal and the safe layout are there when the power goes" [ -s $state/journal.jsonl -a -s $state/safe.json ]
  sync
}
up_or_failed() { is surefootd active || is surefootd failed; }

second_boot() {
  mkfifo /run/never
  latency_ms 2 2
  eventually 120 "5 after a power cut the daemon is started by the boot" is surefootd active
  check "1 the stand-in for resctrl is mounted" [ -e $resctrl/schemata ]
  local pid
  pid=$(main_pid surefootd-actuator)
  check "1 the actuator has CAP_DAC_OVERRIDE alone where there is resctrl (CapEff $(status_field "$pid" CapEff))" [ "$(status_field "$pid" CapEff)" = 0000000000000002 ]
  check "1 ... and can get no other (CapBnd $(status_field "$pid" CapBnd))" [ $((0x$(status_field "$pid" CapBnd) & ~2)) = 0 ]
  check "5 nothing of the former boot is gone on with" not said surefootd "going on with the allocations"
  check "5 ... or put in force by the actuator" not said surefootd-actuator "safe layout.*(in force|writes)"
  eventually 60 "5 web is under control" placed web
  check "4 services that boot later are waited for" said surefootd "store is waited for"
  systemctl start store batch feed
  eventually 60 "4 ... and taken up" placed store batch
  eventually 60 "1 cpusets of LC services are apart from the BE job's" apart
  check "1 cpusets and classes follow the latency" follows
  check "5 systemctl stop surefootd" systemctl stop surefootd
  check "5 web has what its unit says" value_is $cgroups/web.service/cpu.max "250000 100000"
  check "5 ... weight" value_is $cgroups/web.service/cpu.weight 300
  local s
  for s in "${services[@]}"; do check "5 $s has the CPUs that its unit says" value_is "$cgroups/$s.service/cpuset.cpus" 0-6; done
  check "5 no class of ours is left" no_class
  systemctl stop feed

  # 7
  systemctl start surefootd
  eventually 60 "7 in force before removing" placed "${services[@]}"
  check "7 install.sh --remove" "$share/archive/install.sh" --remove
  check "7 ... gives everything back" no_class
  check "7 ... and every CPU" value_is $cgroups/batch.service/cpuset.cpus 0-6
  check "7 ... leaves configuration and state, no more" same \
    "/etc/surefoot /etc/surefoot/surefootd.env /var/lib/surefoot /var/lib/surefoot-actuator" "$(found)"
  install_node
  check "7 what was kept works again" systemctl start surefootd
  rm -r /etc/systemd/system/surefootd*.service.d
  check "7 install.sh --purge" "$share/archive/install.sh" --purge
  check "7 ... leaves nothing" same "" "$(found)"
  check "7 ... not the user either" not getent passwd surefoot
  check "7 ... no process" not pgrep -f "surefootd (run|actuate)" 
  check "7 ... and systemd knows nothing of it" same "" "$(systemctl --no-pager --no-legend --plain list-units --all 'surefootd*' | grep -v not-found)"
}

note "systemd $(systemctl --version | sed -n '1s/systemd \([0-9]*\).*/\1/p'), kernel $(uname -r), $(nproc) CPUs, up after $(cut -d ' ' -f 1 /proc/uptime) s"
case $1 in
  1) first_boot ;;
  2) second_boot ;;
esac
note "up for $(cut -d ' ' -f 1 /proc/uptime) s, $failures failed"
note "status $((failures > 0))"
# No word to anybody: as when the power goes.
echo o >/proc/sysrq-trigger

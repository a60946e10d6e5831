#!/bin/sh
# Whether a service works, for health checks: a glance at its folder, without starting Python. Exit status 0 while it does.
#   semisilo-alive coordinator /federation     `coordinator serve` writes live.json every 1 to 3 s; where the disk takes
#                                              nothing, it holds the lock of its folder, and its work waits
#   semisilo-alive silo /silo                  `silo join` holds the lock of its folder
# It needs sh, date, stat and flock, which Debian's smallest images have.
set -eu
usage() { echo "usage: semisilo-alive coordinator|silo FOLDER" >&2; exit 2; }
# The lock cannot be had: somebody works here.
is_locked() { [ -r "$1" ] && ! flock --shared --nonblock "$1" true; }
[ $# -eq 2 ] || usage
case $1 in
    coordinator)
        # `serve` pauses for a moment when the machine is short of something; a minute is no pause.
        written=$(stat -c %Y "$2/live.json" 2>/dev/null) || written=0
        age=$(($(date +%s) - written))
        if [ "$age" -le 60 ] && [ "$age" -ge -60 ]; then exit 0; fi
        # Could it have written? Then it hangs, or has ended.
        probe="$2/.writable.tmp"
        if (echo 1 >"$probe") 2>/dev/null; then rm -f "$probe"; exit 1; fi
        rm -f "$probe" 2>/dev/null || true
        is_locked "$2/.lock"
        ;;
    silo)
        is_locked "$2/agent.lock"
        ;;
    *) usage ;;
esac

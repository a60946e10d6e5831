#!/bin/sh
# Whether a service works, for health checks: a glance at its folder, without starting Python. Exit status 0 while it does.
#   semisilo-alive coordinator /federation     `coordinator serve` writes live.json every second
#   semisilo-alive silo /silo                  `silo join` holds the lock of its folder
# It needs sh, date, stat and flock, which Debian's smallest images have.
set -eu
usage() { echo "usage: semisilo-alive coordinator|silo FOLDER" >&2; exit 2; }
[ $# -eq 2 ] || usage
case $1 in
    coordinator)
        # `serve` pauses for a moment when the machine is short of something; a minute is no pause.
        written=$(stat -c %Y "$2/live.json" 2>/dev/null) || exit 1
        age=$(($(date +%s) - written))
        [ "$age" -le 60 ] && [ "$age" -ge -60 ]
        ;;
    silo)
        [ -r "$2/agent.lock" ] || exit 1
        # The lock cannot be had: somebody works here.
        if flock --shared --nonblock "$2/agent.lock" true; then exit 1; fi
        ;;
    *) usage ;;
esac

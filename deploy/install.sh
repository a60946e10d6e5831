#!/bin/sh
# Installs semisilo as a service with systemd: the hub of a federation, or a hospital's silo. Run it with --help.
#
# Every version is a folder of its own, /opt/semisilo.d/TIME, and /opt/semisilo points at the one in use: while pip
# fetches, the running service is not touched, and an installation that fails changes nothing. The state of the service,
# /var/lib/semisilo, is never touched except by `uninstall --purge`.

set -eu
umask 022   # the service's user must be able to read the program, and nobody but root to write it

usage() {
    cat <<'HELP'
usage: install.sh hub|silo [install|upgrade|rollback|uninstall] [options]

  install     (the default) user, environment, units; may be repeated
  upgrade     the same for a machine that has it: a hub is backed up first, and the service starts again
  rollback    backs a hub up and points back at the version that was in use before this one; repeated, it goes further
              back or says that there is none, and never to a later one
  A machine that has both roles has one program: an upgrade or rollback of either backs up the hub and restarts both.

  uninstall   stops the service and removes program and units; keys, studies and memory stay in /var/lib/semisilo

  --from WHAT       what pip is to install: a wheel, a folder with the source, or NAME==VERSION where the package index
                    has it; the source that this script lies in by default
  --extras LIST     formats and tools to install along, for example dicom,tiff; '' for none. By default dicom, and for a
                    hub, or a silo on the same machine, onnx as well, in which a hub hands over a model
  --index URL       the package index to use; pip's own by default. A name and a password for it belong in ~/.netrc of
                    root, where pip finds them: other users of this machine can read what is on a command line
  --torch-index URL the package index for torch and torchvision, for example one of builds for the CPU
  --pip-option OPT  an option for pip install; may be repeated
  --python PATH     the Python to use, 3.11 or later; python3 by default
  The last five are remembered: what is not given again is as it was for the version in use. --pip-option, given again,
  takes the place of all that were.
  --forget          as if none of them had ever been given
  --root DIR        put everything under DIR and leave users and systemd alone: for images of disks, and for tests
  --no-start        leave the service as it is; by default one that runs is started again
  --purge           with uninstall: remove /var/lib/semisilo and the user as well; on a machine that keeps the other
                    role, the folder of this one alone. Keys and studies are lost.
  --dry-run         say what would be done, and do nothing
  --help

Examples:
  sh install.sh hub --from semisilo-0.1.0-py3-none-any.whl
  sh install.sh silo --from semisilo-0.1.0-py3-none-any.whl --extras dicom,privacy
  sh install.sh hub upgrade --from semisilo-0.2.0-py3-none-any.whl
  sh install.sh silo uninstall
HELP
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
role='' action='' from='' extras='' index='' torch_index='' python='' root='' start=yes purge=no dry=no forget=no
pip_options=''   # one a line
given=' '        # names of the options that are remembered and were given

say() { printf '%s\n' "==> $*"; }
fail() { printf '%s\n' "error: $1" >&2; exit "${2:-1}"; }
wrong() { fail "$1 See: sh install.sh --help" 2; }
value() { [ "$#" -ge 2 ] || wrong "$1 needs a value."; }

while [ "$#" -gt 0 ]; do
    case $1 in
        hub|silo) [ -z "$role" ] || wrong "'$1' is one word too many."; role=$1 ;;
        install|upgrade|rollback|uninstall) [ -z "$action" ] || wrong "'$1' is one word too many."; action=$1 ;;
        --from) value "$@"; from=$2; shift ;;
        --extras) value "$@"; extras=$2; given="${given}extras "; shift ;;
        --index) value "$@"; index=$2; given="${given}index "; shift ;;
        --torch-index) value "$@"; torch_index=$2; given="${given}torch-index "; shift ;;
        --pip-option) value "$@"; pip_options="$pip_options$2
"; given="${given}pip-option "; shift ;;
        --python) value "$@"; python=$2; given="${given}python "; shift ;;
        --forget) forget=yes ;;
        --root) value "$@"; root=$2; shift ;;
        --no-start) start=no ;;
        --purge) purge=yes ;;
        --dry-run) dry=yes ;;
        -h|--help) usage; exit 0 ;;
        *) wrong "'$1' is not known." ;;
    esac
    shift
done
[ -n "$role" ] || wrong "Say what this machine is: hub or silo."
action=${action:-install}
[ "$purge" = no ] || [ "$action" = uninstall ] || wrong "--purge goes with uninstall."
case $root in '') ;; /*) ;; *) wrong "--root needs a path that begins with /." ;; esac
[ "$root" != / ] || root=''
case $role in
    hub) unit=semisilo-coordinator ;;
    silo) unit=semisilo-silo ;;
esac

prefix=$root/opt/semisilo
releases=$root/opt/semisilo.d
units=$root/etc/systemd/system
docs=$root/usr/local/share/doc/semisilo
state=$root/var/lib/semisilo
backups=$root/var/backups/semisilo

if [ "$dry" = no ] && [ -z "$root" ] && [ "$(id -u)" != 0 ]; then
    fail "This needs root, to make a user and to write /opt and /etc. Run: sudo sh $0 $role $action ... (or look first: --dry-run)"
fi

without_secrets() { sed 's|://[^/@ ]*@|://***@|g'; }   # an index may have a password, and terminals are recorded

do_it() {   # prints the command, and runs it
    printf '    %s\n' "$*" | without_secrets
    [ "$dry" = yes ] || "$@"
}

systemd() { [ -z "$root" ] && command -v systemctl >/dev/null 2>&1 && [ -d /run/systemd/system ]; }
other_role() { [ "$role" = hub ] && echo semisilo-silo.service || echo semisilo-coordinator.service; }
# Both roles of a machine share the program: what changes it for one changes it for the other.
both() { [ -f "$units/$(other_role)" ]; }
has_hub() { [ "$role" = hub ] || both; }
unit_files() {   # of the roles that this machine has
    [ "$role" = hub ] && ! both || echo semisilo-silo.service
    ! has_hub || echo semisilo-coordinator.service semisilo-backup.service semisilo-backup.timer
}
current() { [ ! -L "$prefix" ] || printf '%s' "$releases/$(basename -- "$(readlink -- "$prefix")")"; }

# What was given for a version lies in its folder, a line each, for root alone: an index may have a password.
remembered=$(current)
remembered=${remembered:+$remembered/.options}
if [ "$forget" = no ] && [ -e "$remembered" ] && [ ! -r "$remembered" ]; then
    say "only root can read which options are remembered: $remembered"
elif [ "$forget" = no ] && [ -e "$remembered" ]; then
    known=$given
    new_hub=no   # on the machine of a silo, whose extras are not a hub's
    [ "$role" = silo ] || [ -f "$units/semisilo-coordinator.service" ] || new_hub=yes
    while IFS= read -r line; do
        name=${line%%=*} said=${line#*=}
        case $known in *" $name "*) continue ;; esac
        case $name in
            extras) extras=$said
                case $new_hub,$extras, in yes,*,onnx,*|yes,onnx,*|no,*) ;; *) extras=${extras:+$extras,}onnx ;; esac ;;
            index) index=$said ;;
            torch-index) torch_index=$said ;;
            pip-option) pip_options="$pip_options$said
" ;;
            python) python=$said ;;
            *) continue ;;
        esac
        given="$given$name "
        case $action in install|upgrade) say "as before: --$name $said" | without_secrets ;; esac
    done <"$remembered"
fi
case $given in
    *' extras '*) ;;
    *) extras=dicom
       ! has_hub || extras=dicom,onnx ;;
esac
python=${python:-python3}

options() {   # as they are remembered
    for name in extras index torch-index pip-option python; do
        case $given in *" $name "*) ;; *) continue ;; esac
        case $name in
            extras) printf '%s\n' "extras=$extras" ;;
            index) printf '%s\n' "index=$index" ;;
            torch-index) printf '%s\n' "torch-index=$torch_index" ;;
            pip-option) printf '%s' "$pip_options" | sed 's/^/pip-option=/' ;;
            python) printf '%s\n' "python=$python" ;;
        esac
    done
}

installed_version() {   # of an environment; empty when there is none
    [ -x "$1/bin/coordinator" ] && "$1/bin/coordinator" --version 2>/dev/null || true
}

check_units() {   # before anything is fetched or switched
    for file in $(unit_files); do
        [ -f "$here/systemd/$file" ] ||
            fail "$here/systemd/$file: no such file. The units lie beside this script: copy the folder deploy as a whole." 2
    done
}

make_user() {
    [ -z "$root" ] || return 0
    if ! id semisilo >/dev/null 2>&1; then
        say "the user semisilo"
        do_it useradd --system --user-group --home-dir /var/lib/semisilo --shell /usr/sbin/nologin semisilo
    fi
}

make_folders() {
    say "folders"
    do_it install -d -m 0755 "$root/opt" "$releases" "$units" "$docs"
    owner='-o semisilo -g semisilo'
    [ -z "$root" ] || owner=''
    # shellcheck disable=SC2086
    do_it install -d $owner -m 0700 "$state"
    # shellcheck disable=SC2086
    [ "$role" = silo ] || do_it install -d $owner -m 0700 "$backups"
}

make_release() {   # sets $release
    [ "$dry" = yes ] || "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        fail "$python is no Python >= 3.11 with the modules venv and ensurepip. Install one (Debian 12, Ubuntu 24.04 or later: apt-get install python3 python3-venv; Ubuntu 22.04: apt-get install python3.11 python3.11-venv; RHEL 9: dnf install python3.11), or name it: --python python3.11."
    # Both units have ProtectHome=yes. The root of a disk's image is not where its Python will be looked for.
    lies_in=$("$python" -c 'import os, sys; print(os.path.realpath(sys.base_prefix))' 2>/dev/null || true)
    case $root$lies_in/ in
        /home/*|/root/*|/run/user/*)
            fail "$python lies in $lies_in, which the service cannot read. Name one of the system: --python /usr/bin/python3." ;;
    esac
    what=${from:-$(dirname -- "$here")}
    [ -n "$from" ] || [ -f "$what/pyproject.toml" ] || wrong "Say what to install: --from."
    case $what in
        */*|*.whl) [ -e "$what" ] || fail "$what: no such file or folder." 2
            what=$(CDPATH='' cd -- "$(dirname -- "$what")" && pwd)/$(basename -- "$what") ;;
    esac
    release=$releases/$(date -u +%Y%m%dT%H%M%SZ)
    while [ -e "$release" ]; do release=${release}x; done
    say "$what into $release"
    source=''
    if [ -d "$what" ]; then source=$what what=$release/source; fi
    [ -z "$extras" ] || case $what in
        /*) what="${what}[$extras]" ;;   # no file:// URL, in which a space would have to be %20
        *[=\<\>~!]*) what=$(printf '%s' "$what" | sed "s/[=<>~!]/[$extras]&/") ;;
        *) what="${what}[$extras]" ;;
    esac
    # What is half there when this is interrupted has no file .complete, and goes at the next try.
    trap '[ -e "$release/.complete" ] || rm -rf -- "$release"' EXIT
    trap 'exit 130' INT TERM HUP
    do_it "$python" -m venv "$release"
    if [ -n "$source" ]; then
        # Built from a copy: a build leaves root's files in its folder, and takes along what the one before has left.
        do_it mkdir "$release/source"
        for part in pyproject.toml README.md LICENSE common coordinator silo semisilo; do
            do_it cp -RP "$source/$part" "$release/source/"
        done
    fi
    set -- --disable-pip-version-check --no-input
    [ -z "$index" ] || set -- "$@" --index-url "$index"
    while read -r option; do
        [ -z "$option" ] || set -- "$@" "$option"
    done <<OPTIONS
$pip_options
OPTIONS
    if [ -n "$torch_index" ]; then
        do_it "$release/bin/python" -m pip install "$@" --index-url "$torch_index" 'torch>=2.7' 'torchvision>=0.22'
    fi
    do_it "$release/bin/python" -m pip install "$@" "$what"
    [ -z "$source" ] || do_it rm -rf -- "$release/source"
    [ "$dry" = yes ] || "$release/bin/coordinator" --version >/dev/null || fail "What was installed does not run; see above."
    if [ "$dry" = no ]; then (umask 077 && options >"$release/.options"); fi
    do_it touch "$release/.complete"
}

switch_to() {   # points /opt/semisilo at a release; at every instant it points at one
    say "$prefix -> $1"
    if [ -e "$prefix" ] && [ ! -L "$prefix" ]; then
        fail "$prefix is a folder that this script has not made. Move it away, then try again."
    fi
    do_it ln -sfn "semisilo.d/$(basename -- "$1")" "$prefix.new"
    do_it mv -T "$prefix.new" "$prefix"
}

version_before() {   # the release that was in use when this one took its place: never one that was rolled back from
    if [ -L "$1/.before" ]; then
        old=$releases/$(basename -- "$(readlink -- "$1/.before")")
        [ ! -e "$old/.complete" ] || printf '%s' "$old"
        return 0
    fi
    newest=''   # a first one, or one of an earlier script: the newest of those that are older; their names sort by time
    for old in "$releases"/*; do
        [ "$old" != "$1" ] || break
        [ ! -e "$old/.complete" ] || newest=$old
    done
    printf '%s' "$newest"
}

note_before() {   # in the release $1, that it takes the place of the one in use
    in_use=$(current)
    [ -z "$in_use" ] || do_it ln -sfn "../$(basename -- "$in_use")" "$1/.before"
}

remove_old() {   # all but the one in use and the one before it
    now=$(current) older=$(version_before "$now")
    for old in "$releases"/*; do
        case $old in "$now"|"$older"|"${release:-}") continue ;; esac
        [ ! -d "$old" ] || do_it rm -rf -- "$old"
    done
}

put_units() {
    say "units"
    for file in $(unit_files); do
        do_it install -D -m 0644 "$here/systemd/$file" "$release/units/$file"   # for a rollback to it
        do_it install -m 0644 "$here/systemd/$file" "$units/$file"
    done
    say "pages in $docs"   # some two hundred files: not a line for each
    for part in . methods decisions images; do   # what the pages link to lies beside them
        [ ! -d "$here/../docs/$part" ] || do_it install -d -m 0755 "$docs/$part"
        for page in "$here/../docs/$part"/*.md "$here/../docs/$part"/*.svg "$here/../docs/$part"/*.png; do
            [ ! -f "$page" ] || [ "$dry" = yes ] || install -m 0644 "$page" "$docs/$part/"
        done
    done
    if systemd; then do_it systemctl daemon-reload; fi
}

put_back_units() {   # those of the release $1: a later one's may say what its program does not know
    [ -d "$1/units" ] || return 0   # of an earlier script
    say "units"
    for file in $(unit_files); do
        [ ! -f "$1/units/$file" ] || do_it install -m 0644 "$1/units/$file" "$units/$file"
    done
    if systemd; then do_it systemctl daemon-reload; fi
}

start_again() {
    systemd && [ "$start" = yes ] || return 0
    say "the service, if it runs"
    restart "$unit"
    both || return 0
    say "and $(other_role), which uses the same program"
    restart "$(other_role)"
}

restart() {
    runs=no
    [ "$dry" = yes ] || ! systemctl is-active --quiet "$1" || runs=yes
    if do_it systemctl try-restart "$1" && { [ "$runs" = no ] || is_there_still "$1"; }; then return 0; fi
    fail "$1 does not start with what is in $prefix now. See: journalctl -u $1. To go back: sh $0 $role rollback"
}

is_there_still() {   # a program that cannot go on ends in its first seconds, and systemd waits before the next start
    seconds=5
    while [ $seconds -gt 0 ]; do
        sleep 1
        systemctl is-active --quiet "$1" || return 1
        seconds=$((seconds - 1))
    done
}

backup_hub() {   # false where there is a hub and no backup of it
    has_hub && [ -f "$state/federation/federation.toml" ] && [ -n "$(installed_version "$prefix")" ] || return 0
    say "a backup, with the version that is about to go"
    set -- "$prefix/bin/coordinator" backup "$backups" --folder "$state/federation"
    [ -n "$root" ] || set -- runuser -u semisilo -- "$@"
    # A version from before there were backups has no such command.
    do_it "$@"
}

next_steps() {
    run='runuser -u semisilo --'
    case $role in
        hub) if [ ! -f "$state/federation/federation.toml" ]; then cat <<NEXT

Next, as root:
  $run $prefix/bin/coordinator init lung-federation --address hub.example:8443 --folder $state/federation
  edit $state/federation/studies/first/study.toml, put the labelled images beside it
  systemctl enable --now $unit semisilo-backup.timer
  $run $prefix/bin/coordinator invite hospital-a --folder $state/federation
NEXT
        fi ;;
        silo) if [ ! -e "$state/silo/identity" ]; then cat <<NEXT

Next, as root, with the line from the hub:
  $run $prefix/bin/silo enroll --home $state/silo LINE
  (behind a proxy: $run env https_proxy=http://proxy.example:3128 $prefix/bin/silo enroll --home $state/silo LINE,
   and https_proxy=http://proxy.example:3128 as a line of /etc/semisilo/silo.env, which the service reads)
  read $state/silo/silo.toml: what may leave this site; [data] source names the images, /scans while it does not
  $run $prefix/bin/silo check --home $state/silo
  systemctl enable --now $unit
  $run $prefix/bin/silo status --home $state/silo
NEXT
        fi ;;
    esac
}

case $action in
install|upgrade)
    [ "$action" = install ] || [ -n "$(current)" ] || fail "There is nothing to upgrade in $prefix. Run: sh $0 $role install" 2
    check_units
    before=$(installed_version "$prefix")
    make_user
    make_folders
    make_release
    # A hub that is installed again is no other version; a silo that is installed beside a hub may bring one.
    [ "$action" = install ] && [ "$role" = hub ] || backup_hub || fail "The backup failed; nothing was changed. See above."
    note_before "$release"
    switch_to "$release"
    put_units
    start_again
    remove_old
    [ "$dry" = yes ] || say "done: $(installed_version "$prefix")${before:+, before: $before}"
    [ "$dry" = yes ] || next_steps
    ;;
rollback)
    now=$(current)
    [ -n "$now" ] || fail "There is nothing installed in $prefix." 2
    before=$(version_before "$now")
    [ -n "$before" ] || fail "No version from before $(basename -- "$now"), which is in use, is left in $releases. A rollback never goes to a later one: install that with upgrade."
    # The version that goes may be the trouble: it does not hold up what takes its place.
    backup_hub || say "the backup failed, see above; the one from before the upgrade is in $backups"
    switch_to "$before"
    put_back_units "$before"
    start_again
    [ "$dry" = yes ] || say "done: $(installed_version "$prefix")"
    say "If this version refuses the ledger, restore the backup from before the upgrade, not the one of now: $backups"
    ;;
uninstall)
    say "the service"
    set -- "$unit.service"
    [ "$role" = silo ] || set -- "$@" semisilo-backup.timer semisilo-backup.service
    for file in "$@"; do
        if systemd && [ -f "$units/$file" ]; then do_it systemctl disable --now "$file" || true; fi
        do_it rm -f -- "$units/$file"
        [ ! -e "$units/$file.d" ] || say "stays: $units/$file.d, which systemctl edit has made"
    done
    if systemd; then do_it systemctl daemon-reload; fi
    if [ -f "$units/$(other_role)" ]; then
        say "the program stays: $(other_role) needs it"
        own=$state/silo
        [ "$role" = silo ] || own=$state/federation
        if [ "$purge" = yes ]; then
            say "everything that the $role has kept"
            do_it rm -rf -- "$own"
            [ "$role" = silo ] || [ ! -d "$backups" ] || say "backups stay: $backups"
        elif [ -e "$own" ]; then
            say "keys, studies and memory stay: $own (uninstall --purge removes them)"
        fi
        exit 0
    fi
    say "the program"
    do_it rm -f -- "$prefix"
    do_it rm -rf -- "$releases" "$docs"
    if [ "$purge" = yes ]; then
        say "everything that it has kept"
        do_it rm -rf -- "$state"
        if [ -z "$root" ] && id semisilo >/dev/null 2>&1; then
            # The number of the account may be given to another one, which must not find the federation's keys its own.
            [ ! -d "$backups" ] || do_it chown -R root:root "$backups"
            do_it userdel semisilo
        fi
        [ ! -d "$backups" ] || say "backups stay: $backups"
        [ ! -e "$root/etc/semisilo" ] || say "stays: $root/etc/semisilo, where a proxy's password may be"
    elif [ -d "$state" ]; then
        say "keys, studies and memory stay: $state (uninstall --purge removes them)"
    fi
    ;;
esac

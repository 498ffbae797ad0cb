#!/bin/sh
# dsh in one file: this header, then a tar.gz of a folder with its own Python. The folder is unpacked once, into a
# cache folder under the archive's hash; every later start is the tests in start() and an exec.
# (docs/building.md tells why each line is as it is.)

# start CACHE ARGUMENTS: does not return when CACHE has the unpacked folder. "whole" is the first file unpacked and
# is never read, so a cleaner of old temporary files that takes anything takes it too.
start() {
    case $1 in /*) d=$1/dsh/app/@HASH@ ;; *) return ;; esac
    [ -e "$d/whole" ] && [ -x "$d/bin/@PYTHON@" ] && [ -O "$d" ] || return
    shift
    # without /proc the loader cannot tell where our libraries lie; dsh/_start.py takes the variable away again
    [ -e /proc/self/exe ] || export LD_ORIGIN_PATH="$d/bin"
    exec "$d/bin/@PYTHON@" @FLAGS@ "$d/@BOOT@" "$@"
}

# A folder in /tmp is ours when it is a real folder and belongs to us; one look, so nobody can swap it in between.
ours() { [ -n "$(find "$1" -prune -type d -user "$uid" 2>/dev/null)" ]; }

# unpack CACHE: put the folder there; fails when CACHE cannot be written, may not run programs or has no room.
unpack() {
    case $1 in /*) a=$1/dsh/app d=$1/dsh/app/@HASH@ ;; *) return 1 ;; esac
    case $1 in */dsh-"$uid")
        mkdir -m 700 "$1" 2>/dev/null
        ours "$1" || return
        ;;
    esac
    (umask 077 && mkdir -p "$a") 2>/dev/null && [ -O "$a" ] || return
    # one at a time, where there is flock; else several unpack and the first to finish wins
    if command -v flock && (: >>"$a/lock") && exec 9>>"$a/lock" && flock 9; then
        [ -e "$d/whole" ] && exec 9>&- && return
        rm -rf "$d".* # left by a kill -9
    fi >/dev/null 2>&1
    t=$(mktemp -d "$d.XXXXXX" 2>/dev/null) || return
    trap 'rm -rf "$t" "$t.old"' 0
    trap 'exit 129' 1
    trap 'exit 130' 2
    trap 'exit 143' 15
    if : >"$t/x" && chmod 700 "$t/x" && [ -x "$t/x" ] && rm "$t/x"; then # false where programs may not run
        if tail -c +@OFFSET@ "$0" | tar -xzof - -C "$t"; then
            sync -f "$t" 2>/dev/null
            [ -e "$d" ] && [ ! -e "$d/whole" ] && mv -T "$d" "$t.old"
            mv -T "$t" "$d" 2>/dev/null
        else
            echo "dsh: could not unpack into $a: no room, or this file is damaged" >&2
        fi
    fi
    rm -rf "$t" "$t.old"
    trap - 0 1 2 15
    # other versions that nobody has started for two months, and what a kill -9 left of them
    for f in "$a"/*/bin/python3*; do
        [ -n "$(find "$f" -atime +60 2>/dev/null)" ] && [ "${f%/bin/*}" != "$d" ] && rm -rf "${f%/bin/*}"
    done
    find "$a" -maxdepth 1 -name '*.*' -mmin +60 -exec rm -rf {} + 2>/dev/null
    exec 9>&-
}

home=${HOME:+$HOME/.cache}
start "${XDG_CACHE_HOME-}" "$@"
start "$home" "$@"
uid=$(id -u)
# look everywhere before unpacking anywhere, or a cache folder that cannot be used is tried at every start
for c in /var/tmp/dsh-"$uid" /tmp/dsh-"$uid"; do
    ours "$c" && start "$c" "$@"
done
[ -d "${HOME-}" ] || home=
for c in "${XDG_CACHE_HOME-}" "$home" /var/tmp/dsh-"$uid" /tmp/dsh-"$uid"; do
    unpack "$c" && start "$c" "$@"
done
echo "dsh: found no folder that can be written and may run programs; set XDG_CACHE_HOME to one" >&2
exit 3

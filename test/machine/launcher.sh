#!/bin/sh
# Boots one machine, again after each reboot, and takes everything away when its standard input ends, which it does at
# the latest when the test dies. It has a mount namespace of its own, in which all of this happens.
#   launcher.sh NAME BASE MOUNTPOINT [NSPAWN-OPTION...]
# reads "on" where a machine that is off is to boot, and writes "down" when it has gone down, and "off" if it stays so.
set -eu
name=$1 base=$2 at=$3
shift 3

# What the machine writes is kept in memory, over the base that all machines share.
mount -t tmpfs -o mode=755 tmpfs "$at"
mkdir "$at/upper" "$at/work" "$at/root"
mount -t overlay -o "lowerdir=$base,upperdir=$at/upper,workdir=$at/work" overlay "$at/root"

# nspawn keeps notes in /run, and removes there what it finds.
mount -t tmpfs -o mode=755 tmpfs /run

# The machine is to see the second version of control groups and nothing else, whatever the host has. It gets a group
# of its own, so that ending it can hit nobody else.
mount -t cgroup2 cgroup2 /sys/fs/cgroup
cd /sys/fs/cgroup

remove() { # GROUP: ends what is in it
	[ -d "$1" ] || return 0
	echo 1 >"$1/cgroup.kill"
	while [ -d "$1" ]; do
		find "$1" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.05
	done
}

# A test that was killed together with its launcher leaves its group behind.
for group in nth-machine-*; do
	pid=${group#nth-machine-} pid=${pid%%-*}
	[ -d "/proc/$pid" ] || remove "$group"
done

boot() { # NSPAWN-OPTION...
	while :; do
		mkdir -p "$name"
		status=0
		# Without a systemd on the host there is nobody to register with, and no unit to run in. A reboot of the guest
		# then ends nspawn, with status 133.
		sh -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$name" \
			systemd-nspawn --quiet --settings=no --keep-unit --register=no --notify-ready=yes --boot \
			--directory="$at/root" --machine="$name" --hostname="$name" \
			--link-journal=no --timezone=off --resolv-conf=off --console=read-only "$@" \
			</dev/null >&2 || status=$?
		remove "$name"
		echo down
		[ "$status" = 133 ] || break
	done
	echo off
}

boot "$@" &
while read -r command; do
	case $command in
	on) wait; boot "$@" & ;;
	esac
done

# No more reboots: the loop goes before what it would boot again.
trap '' TERM
kill -- $! 2>/dev/null || :
remove "$name"
wait
remove "$name"

#!/bin/sh
# Boots one machine, again after each reboot, and takes everything away when its standard input ends, which it does at
# the latest when the test dies. It has a mount namespace of its own, in which all of this happens.
#   launcher.sh NAME BASE MOUNTPOINT [NSPAWN-OPTION...]
# reads "cut" where the machine is to be off at once, and writes "down" when it has gone down, and "off" if it stays so.
set -eu
name=$1 base=$2 at=$3
shift 3

# What the machine writes is kept in memory, over the base that all machines share.
mount -t tmpfs -o mode=755 tmpfs "$at"
mkdir "$at/upper" "$at/work" "$at/root"
mount -t overlay -o "lowerdir=$base,upperdir=$at/upper,workdir=$at/work" overlay "$at/root"

# nspawn keeps notes in /run, and removes there what it finds.
mount -t tmpfs -o mode=755 tmpfs /run

# The machine gets a control group of its own in every hierarchy, so that ending it can hit nobody else. It is to see the
# second version and nothing else, whatever the host has; unless it needs controllers, and the host has given those to
# the first. Then it sees the hierarchies of the first, each from its own group down.
above= # our own groups there, above the machine's
if [ -n "${CONTROLLERS:-}" ] && grep -q '^[0-9]*:\([^:]*,\)\?memory[,:]' /proc/self/cgroup; then
	above=$(sed -n 's|^[1-9][0-9]*:\(name=\)\?\([^:]*\):|/sys/fs/cgroup/\2|p' /proc/self/cgroup)
	export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=0
	groups=$at/groups
	mkdir "$groups"
else
	groups=/sys/fs/cgroup
fi
export above
mount -t cgroup2 cgroup2 "$groups"
cd "$groups"

make() { # GROUP
	for parent in $above .; do
		mkdir -p "$parent/$1"
		# A group without processors and memory takes no process.
		for set in cpuset.cpus cpuset.mems; do
			[ "$parent" = . ] || [ ! -e "$parent/$set" ] || cat "$parent/$set" >"$parent/$1/$set"
		done
	done
	[ -z "${CONTROLLERS:-}" ] || for controller in $(cat cgroup.controllers); do
		echo "+$controller" >cgroup.subtree_control || :
	done
}

remove() { # GROUP: ends what is in it
	[ ! -d "$1" ] || echo 1 >"$1/cgroup.kill"
	# The machine may have made groups of its own, in every hierarchy.
	while [ -n "$(find $above . -type d -name "$1" 2>/dev/null)" ]; do
		find $above . -depth -type d '(' -name "$1" -o -path "*/$1/*" ')' -exec rmdir {} + 2>/dev/null || sleep 0.05
	done
}

# A test that was killed together with its launcher leaves its groups behind.
for group in $(for parent in $above .; do ls "$parent"; done | grep '^nth-machine-'); do
	pid=${group#nth-machine-} pid=${pid%%-*}
	[ -d "/proc/$pid" ] || remove "$group"
done

boot() { # NSPAWN-OPTION...
	while :; do
		make "$name"
		status=0
		# Without a systemd on the host there is nobody to register with, and no unit to run in. A reboot of the guest
		# then ends nspawn, with status 133.
		sh -c 'for parent in $above .; do echo $$ >"$parent/$0/cgroup.procs"; done; exec "$@"' "$name" \
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
	[ "$command" != cut ] || echo 1 >"$name/cgroup.kill" || : # it may go down by itself at this moment
done

# No more reboots: the loop goes before what it would boot again.
trap '' TERM
kill -- $! 2>/dev/null || :
remove "$name"
wait
remove "$name"

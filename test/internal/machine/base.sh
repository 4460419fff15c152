#!/bin/sh
# Makes the root file system that machines of a suite are booted over, from the archive that mmdebstrap knows.
#   base.sh SUITE DIRECTORY PACKAGES
set -eu
suite=$1 dir=$2 packages=$3
rm -rf --one-file-system "$dir.new"

# Documents and translations would be half of it. The journal is kept, since a test reads it after a reboot, loses
# nothing, and is on disk soon. Nothing runs by the clock. A mirror that has not been renewed for some weeks is good enough.
mmdebstrap --quiet --mode=root --variant=minbase --components=main --include="$packages" \
	--aptopt='Acquire::Check-Valid-Until "false"' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/doc/*' \
	--customize-hook='cd "$1" && rm -f etc/hostname etc/resolv.conf etc/dpkg/dpkg.cfg.d/99mmdebstrap' \
	--customize-hook='cd "$1" && rm -f var/lib/dbus/machine-id && : >etc/machine-id' \
	--customize-hook='cd "$1" && mkdir -p etc/systemd/journald.conf.d var/log/journal &&
		printf "[Journal]\nStorage=persistent\nRateLimitBurst=0\nSyncIntervalSec=1s\n" >etc/systemd/journald.conf.d/50-test.conf' \
	--customize-hook='cd "$1" && for unit in apt-daily apt-daily-upgrade dpkg-db-backup e2scrub_all fstrim systemd-tmpfiles-clean; do
		ln -sf /dev/null "etc/systemd/system/$unit.timer"; done' \
	"$suite" "$dir.new"
mv -T "$dir.new" "$dir"

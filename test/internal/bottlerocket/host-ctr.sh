#!/bin/sh
# Does with runc what Bottlerocket's host-ctr does with containerd: each start is a new container of the image, SIGTERM
# is passed on, and a container that has not ended 20 seconds later is killed.
#   host-ctr NAME
set -u
name=$1 dir=/var/lib/host-containerd/$1
runc delete --force "$name" 2>/dev/null
rm -rf "$dir/rootfs"
cp -a "$dir/image" "$dir/rootfs"
runc run --no-new-keyring --bundle "$dir" "$name" &
container=$!

stop() {
	runc kill "$name" TERM
	for _ in $(seq 200); do
		kill -0 "$container" 2>/dev/null || return
		sleep 0.1
	done
	echo "host-ctr: killing the container" >&2
	runc kill "$name" KILL
}
trap 'stop; trap "" TERM' TERM
wait "$container"
status=$?
# The trap ends the waiting, not the container.
if kill -0 "$container" 2>/dev/null; then
	wait "$container"
	status=$?
fi
exit "$status"

package bottlerocket

import (
	"encoding/json"
	"slices"
)

type object = map[string]any

// spec is the runtime specification that host-ctr makes for a superpowered container with the name, as JSON: its namespaces, mounts, limits, and
// all the capabilities of the host. What the specification leaves out has no meaning to nth: SELinux labels, the filter of system calls, kernel
// modules and sources.
func spec(name string, capabilities []string, image config) ([]byte, error) {
	return json.MarshalIndent(object{
		"ociVersion": "1.0.2",
		"process": object{
			"user": object{"uid": 0, "gid": 0}, "cwd": "/",
			"args":         slices.Concat(image.Entrypoint, image.Cmd),
			"env":          image.Env,
			"capabilities": object{"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
			"rlimits":      []object{{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}},
		},
		"root":   object{"path": "rootfs"},
		"mounts": slices.Concat([]object{processes}, mounts(name), hostMounts),
		"linux": object{
			"cgroupsPath": "/default/nth", "namespaces": []object{{"type": "ipc"}, {"type": "uts"}, {"type": "mount"}},
		},
	}, "", "  ")
}

// processes is /proc. It is the machine's own, with the processes of the host: the machine is a container itself, and only there is the boot ID
// that it calls its own.
var processes = object{"destination": "/proc", "type": "bind", "source": "/proc", "options": []string{"rbind"}}

// mounts are those of every host container.
func mounts(name string) []object {
	mount := func(kind, at string, options ...string) object {
		return object{"destination": at, "type": kind, "source": kind, "options": options}
	}
	bind := func(from, at, mode string) object {
		return object{"destination": at, "type": "bind", "source": from, "options": []string{"rbind", mode}}
	}
	home := "/local/host-containers/" + name
	return []object{
		mount("tmpfs", "/dev", "nosuid", "mode=755"),
		mount("tmpfs", "/dev/shm", "nosuid", "noexec", "nodev", "mode=1777"),
		mount("sysfs", "/sys", "nosuid", "noexec", "nodev", "ro"),
		mount("tmpfs", "/run", "nosuid", "mode=755"),
		bind("/etc/hosts", "/etc/hosts", "ro"),
		bind("/local/resolv.conf", "/etc/resolv.conf", "ro"),
		bind("/etc/bottlerocket-release", "/etc/bottlerocket-release", "ro"),
		bind("/var/log/support", "/.bottlerocket/support", "ro"),
		bind(home, "/.bottlerocket/host-containers/"+name, "rw"),
		bind(home, "/.bottlerocket/host-containers/current", "rw"),
	}
}

// hostMounts are those that superpowers add.
var hostMounts = []object{
	{"destination": "/.bottlerocket/rootfs", "type": "bind", "source": "/", "options": []string{"rbind", "ro", "rprivate"}},
	{"destination": "/.bottlerocket/rootfs/mnt", "type": "bind", "source": "/mnt", "options": []string{"rbind", "rshared"}},
}

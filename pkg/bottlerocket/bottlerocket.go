// Package bottlerocket describes the environment of a host container on Bottlerocket: where the container's settings and
// state are, whether the host's file system is mounted, and to which cluster the host belongs.
//
// A superpowered host container sees the host's file system, with the kubelet's kubeconfig and the D-Bus socket. Any other
// has only Bottlerocket's API, whose settings have what the kubelet's kubeconfig is made of.
//
// Sources: https://bottlerocket.dev/en/os/latest/#/concepts/host-containers/, and the code of host-ctr, which mounts these
// paths.
package bottlerocket

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// The paths in a host container.
const (
	home    = ".bottlerocket/host-containers/current"
	host    = ".bottlerocket/rootfs"
	apiFile = "run/api.sock"
)

// Container is a host container, as seen from within.
type Container struct {
	// UserData is the file with the value of "settings.host-containers.NAME.user-data", which need not exist, and
	// StateDirectory a directory that survives the container and reboots.
	UserData, StateDirectory string
	// Host is the mounted root directory of the host; empty if the container is not superpowered.
	Host string
	API  API
}

// API is the socket of Bottlerocket's API.
type API string

// Find reports whether the file system with this root directory, "/" for this process, is that of a host container. If not,
// only Container.API is set.
func Find(root string) (Container, bool) {
	c := Container{API: API(filepath.Join(root, apiFile))}
	if !exists(filepath.Join(root, home)) {
		return c, false
	}
	c.UserData = filepath.Join(root, home, "user-data")
	c.StateDirectory = filepath.Join(root, home, "state")
	if path := filepath.Join(root, host); exists(path) {
		c.Host = path
	}
	return c, true
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

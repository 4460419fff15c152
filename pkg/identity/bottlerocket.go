package identity

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// The paths in a host container.
const (
	containerHome = ".bottlerocket/host-containers/current"
	containerHost = ".bottlerocket/rootfs"
)

// Container is a host container of Bottlerocket, as seen from within. Sources: https://bottlerocket.dev/en/os/latest/#/concepts/host-containers/,
// and the code of host-ctr, which mounts these paths.
type Container struct {
	// UserData is the file with the value of "settings.host-containers.NAME.user-data", which need not exist, and
	// StateDirectory a directory that survives the container and reboots.
	UserData, StateDirectory string
	// Host is the mounted root directory of the host, with the kubelet's kubeconfig and the socket of D-Bus; empty if the container is not
	// superpowered.
	Host string
}

// FindContainer looks for the paths of a host container below root, which is "/" for this process. It returns false if this process runs in no
// host container.
func FindContainer(root string) (Container, bool) {
	if !exists(filepath.Join(root, containerHome)) {
		return Container{}, false
	}
	c := Container{
		UserData: filepath.Join(root, containerHome, "user-data"), StateDirectory: filepath.Join(root, containerHome, "state"),
	}
	if path := filepath.Join(root, containerHost); exists(path) {
		c.Host = path
	}
	return c, true
}

// exists reports whether a path exists. A path that cannot be examined counts as one that does.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

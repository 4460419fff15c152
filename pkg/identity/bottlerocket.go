package identity

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// The paths of Bottlerocket in a host container: what belongs to the container, and the mounted root directory of the host.
const (
	containerHome = ".bottlerocket/host-containers/current"
	containerHost = ".bottlerocket/rootfs"
)

// Container has the paths of a host container of Bottlerocket, as a process in the container sees them. Sources:
// https://bottlerocket.dev/en/os/latest/#/concepts/host-containers/, and the code of host-ctr, which mounts these paths.
type Container struct {
	// UserData is the file with the value of "settings.host-containers.NAME.user-data". The file need not exist.
	UserData string
	// StateDirectory is a directory whose content is kept when the container or the machine restarts.
	StateDirectory string
	// Host is the mounted root directory of the host, with the kubelet's kubeconfig and the socket of D-Bus; empty if the container is not
	// superpowered.
	Host string
}

// FindContainer looks for the paths of a host container. root is "/", or a directory of a test. found is false if this process does not run in a
// host container.
func FindContainer(root string) (c Container, found bool) {
	if !exists(filepath.Join(root, containerHome)) {
		return Container{}, false
	}
	c = Container{
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

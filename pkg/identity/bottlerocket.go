package identity

import (
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
	home, host := filepath.Join(root, containerHome), filepath.Join(root, containerHost)
	if _, err := os.Stat(home); err != nil {
		return Container{}, false
	}
	c = Container{UserData: filepath.Join(home, "user-data"), StateDirectory: filepath.Join(home, "state")}
	if _, err := os.Stat(host); err == nil {
		c.Host = host
	}
	return c, true
}

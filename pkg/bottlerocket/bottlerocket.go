// Package bottlerocket knows what nth finds around it in a host container of Bottlerocket: where its settings and its
// memory are, whether the host's file system is there, and how the host is asked about its cluster.
//
// A host container is superpowered or not. One that is sees the host's file system, with the kubelet's kubeconfig and the
// socket of D-Bus; one that is not has Bottlerocket's API alone, whose settings have what the kubelet's kubeconfig is
// made of.
//
// Facts: https://bottlerocket.dev/en/os/latest/#/concepts/host-containers/, and the sources of host-ctr, which mounts
// what is found here.
package bottlerocket

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// The places in a host container.
const (
	home    = ".bottlerocket/host-containers/current"
	host    = ".bottlerocket/rootfs"
	apiFile = "run/api.sock"
)

// Container is a host container, as seen from within.
type Container struct {
	// UserData is the file with what "settings.host-containers.NAME.user-data" has, which need not be there, and
	// StateDirectory a place that outlives the container and the boot.
	UserData, StateDirectory string
	// Host is where the host's file system is; empty if the container is not superpowered.
	Host string
	API  API
}

// API is the socket of Bottlerocket's API.
type API string

// Find tells whether what has this root directory, "/" for the process itself, is a host container. What is found of one
// that is none is the API alone.
func Find(root string) (Container, bool) {
	if !there(filepath.Join(root, home)) {
		return Container{API: API(filepath.Join(root, apiFile))}, false
	}
	c := Container{
		UserData:       filepath.Join(root, home, "user-data"),
		StateDirectory: filepath.Join(root, home, "state"),
		API:            API(filepath.Join(root, apiFile)),
	}
	if there(filepath.Join(root, host)) {
		c.Host = filepath.Join(root, host)
	}
	return c, true
}

func there(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

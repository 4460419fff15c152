package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/nth-project/nth/pkg/fleet"
)

// self names this process among all that read the queue: the host, the space that its process IDs are from, and its own.
type self struct {
	host, space string
	pid         int
}

func whoAmI() (self, error) {
	host, err := os.Hostname()
	if err != nil {
		return self{}, fmt.Errorf("asking for the host's name: %w", err)
	}
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return self{}, fmt.Errorf("asking for the space of process IDs: %w", err)
	}
	return self{host: host, space: space, pid: os.Getpid()}, nil
}

func (s self) String() string { return fmt.Sprintf("%s/%s/%d", s.host, s.space, s.pid) }

// outlived tells whether a process of that name is known not to be there any more: it was started on this host, in this
// space, and its ID is nobody's now.
func (s self) outlived(name string) bool {
	var pid int
	prefix := fmt.Sprintf("%s/%s/", s.host, s.space)
	if len(name) <= len(prefix) || name[:len(prefix)] != prefix {
		return false
	}
	if _, err := fmt.Sscanf(name[len(prefix):], "%d", &pid); err != nil || pid <= 0 {
		return false
	}
	return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// ownPod is the pod that this process runs in, as the pod's manifest tells it in the environment; nothing elsewhere.
func ownPod() fleet.Own {
	return fleet.Own{Node: os.Getenv("NODE_NAME"), Namespace: os.Getenv("POD_NAMESPACE"), Pod: os.Getenv("POD_NAME")}
}

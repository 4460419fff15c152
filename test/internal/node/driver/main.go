// The driver command is the part of a CSI driver that runs on a node: it tells the kubelet that it is there, and gives a
// volume to a pod, and takes it back, when the kubelet says so. What a volume holds is a directory of the machine.
//
//	driver -name ebs.csi.aws.com -socket /var/lib/kubelet/plugins_registry/driver.sock -volumes /var/lib/volumes
//
// Who attaches volumes to machines is the package lab's stand-in.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	d := &driver{refused: make(chan string, 1)}
	flag.StringVar(&d.name, "name", "", "the name of the driver")
	flag.StringVar(&d.socket, "socket", "", "where the kubelet looks for it")
	flag.StringVar(&d.volumes, "volumes", "", "the directory that holds the volumes")
	flag.Parse()
	if err := d.serve(); err != nil {
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(1)
	}
}

// A driver serves at one socket what the kubelet registers and what it calls then.
type driver struct {
	registration.UnimplementedRegistrationServer
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer

	name, socket, volumes string
	refused               chan string // what the kubelet has against it
}

// serve answers the kubelet until it is told to end, or refused.
func (d *driver) serve() error {
	told, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := os.MkdirAll(filepath.Dir(d.socket), 0o750); err != nil {
		return err
	}
	if err := os.Remove(d.socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", d.socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	defer server.Stop()
	registration.RegisterRegistrationServer(server, d)
	csi.RegisterIdentityServer(server, d)
	csi.RegisterNodeServer(server, d)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case reason := <-d.refused:
		return fmt.Errorf("the kubelet refuses it: %s", reason)
	case <-told.Done():
		return nil
	}
}

// GetInfo tells the kubelet what has come into its directory.
func (d *driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: d.name, Endpoint: d.socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus hears what the kubelet thinks of that. A kubelet that has refused a driver, as one does whose Node is
// not there yet, heeds it only when it comes anew.
func (d *driver) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !s.GetPluginRegistered() {
		d.refused <- s.GetError()
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// NodeGetInfo names the machine.
func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	name, err := os.Hostname()
	return &csi.NodeGetInfoResponse{NodeId: name}, err
}

// NodeGetCapabilities says that it does no more than it has to.
func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// NodePublishVolume mounts a volume where its pod finds it.
func (d *driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	volume := filepath.Join(d.volumes, r.GetVolumeId())
	for _, dir := range []string{volume, r.GetTargetPath()} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, failed(err)
		}
	}
	if err := unix.Mount(volume, r.GetTargetPath(), "", unix.MS_BIND, ""); err != nil {
		return nil, failed(fmt.Errorf("mounting %s: %w", volume, err))
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume takes it away again. It may be asked for what it has done before.
func (d *driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := unix.Unmount(r.GetTargetPath(), 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return nil, failed(fmt.Errorf("unmounting %s: %w", r.GetTargetPath(), err))
	}
	if err := os.Remove(r.GetTargetPath()); err != nil && !os.IsNotExist(err) {
		return nil, failed(err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func failed(err error) error { return status.Error(codes.Internal, err.Error()) }

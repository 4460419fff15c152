package fleet

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Description is what a Node tells of its machine. What it does not tell is empty.
type Description struct {
	Instance, Type, Zone, Region             string
	LocalIP, LocalName, PublicIP, PublicName string
	Labels                                   map[string]string
}

// Describe asks the API server about a node.
func (f *Fleet) Describe(ctx context.Context, name string) (Description, error) {
	n, err := f.opts.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Description{}, fmt.Errorf("describing node %q: %w", name, err)
	}
	d := Description{
		Instance: instanceOf(n.Spec.ProviderID), Type: n.Labels[corev1.LabelInstanceTypeStable],
		Zone: n.Labels[corev1.LabelTopologyZone], Region: n.Labels[corev1.LabelTopologyRegion], Labels: n.Labels,
	}
	if d.Zone == "" && d.Instance != "" {
		zone := strings.TrimPrefix(n.Spec.ProviderID, "aws:///")
		d.Zone, _, _ = strings.Cut(zone, "/")
	}
	for _, a := range n.Status.Addresses {
		switch a.Type {
		case corev1.NodeInternalIP:
			d.LocalIP = a.Address
		case corev1.NodeInternalDNS:
			d.LocalName = a.Address
		case corev1.NodeExternalIP:
			d.PublicIP = a.Address
		case corev1.NodeExternalDNS:
			d.PublicName = a.Address
		case corev1.NodeHostName:
		}
	}
	return d, nil
}

package config

import (
	"regexp"
	"strings"
	"time"
)

var (
	sources = []string{"kubeconfig", "bottlerocket"}
	tokens  = []string{"auto", "plugin", "eks"}
)

func (c *Kubernetes) table() table {
	return table{"kubernetes", "The way to the API server, with the kubelet's own identity, and what is told there.", append([]setting{
		{"kubeconfig", optionalFile(&c.Kubeconfig),
			"The kubelet's kubeconfig. Empty is the first that exists of `/var/lib/kubelet/kubeconfig`, `/etc/kubernetes/kubelet/kubeconfig` and `/etc/kubernetes/kubelet.conf`."},
		{"source", choice{&c.Source, sources},
			"Where the API server, its certificate and the cluster's name are from: the kubelet's kubeconfig, or the settings of the Bottlerocket host on which nth is a host container."},
		{"token", choice{&c.Token, tokens},
			"How to obtain the EKS token where the kubeconfig names a plugin for that (`aws eks get-token`, `aws-iam-authenticator`): made by nth itself from the instance's role, as the plugin would (`eks`), or by running the plugin (`plugin`). `auto` makes it where the plugin is asked for nothing but a cluster's token, and runs the plugin elsewhere, and where that fails or the token is refused. With `source = \"bottlerocket\"` it is always `eks`."},
		{"keep_warm", duration{&c.KeepWarm, time.Second, day},
			"The time between two cheap requests that keep the credential fresh, so that a drain never starts by fetching a token."},
		{"heartbeat", duration{&c.Heartbeat, 0, day},
			"The time between two writes of the condition `InterruptionPending`, give or take a tenth, while nth watches and nothing changes: by `lastHeartbeatTime` others see which nodes have a live nth. With \"0s\" there is no condition before something is announced, and it is refreshed only while it is `True`, every five minutes."},
	}, c.ToldCluster.settings()...)}
}

// settings describes what the cluster is told, which is the same for nth and for nth-queue.
func (c *ToldCluster) settings() []setting {
	return []setting{
		{"condition", boolean{&c.Condition},
			"Maintain the Node's condition `InterruptionPending`."},
		{"lifecycle_conditions", boolean{&c.LifecycleConditions},
			"Maintain the Node's conditions `DrainInProgress`, `Drained`, `MaintenancePlanned` and `MaintenanceInProgress`, as far as they are nobody else's. In Kubernetes they are alpha."},
		{"events", boolean{&c.Events},
			"Write Events about the Node, and about the pods that are evicted, for `kubectl describe` and whoever collects them."},
		{"event_source", text{&c.EventSource, func(s string) bool { return len(s) <= longestName && component.MatchString(s) },
			"a name of letters, digits, dashes and dots"},
			"The component that Events name as their source."},
		{"event_annotations", texts{&c.EventAnnotations, annotation,
			`a table of annotations such as { "example.com/team" = "a" }, each of up to 1024 bytes`},
			"Annotations that every Event gets; of the same name, they go before those of nth."},
	}
}

// The shapes of names and domains. How long they may be is no part of the expressions: a count in one is compiled into so
// many copies, at every start.
var (
	component = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`)
	keyName   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	keyDomain = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
)

const (
	longestName   = 63
	longestDomain = 253
)

// annotation tells whether the API server takes that for an annotation of reasonable size.
func annotation(key, text string) bool { return isKey(key) && len(text) <= 1024 }

// isKey tells whether that is the key of an annotation or a label: a name, after a domain and a slash or alone.
func isKey(s string) bool {
	domain, name, found := strings.Cut(s, "/")
	if !found {
		domain, name = "none", s
	}
	return len(domain) <= longestDomain && keyDomain.MatchString(domain) &&
		len(name) <= longestName && keyName.MatchString(name)
}

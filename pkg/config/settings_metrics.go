package config

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"
)

// Metrics is the table [metrics].
type Metrics struct {
	Listen     string // "host:port"; "" is off
	Textfile   string // "" is off
	Compatible bool
}

func (c *Metrics) table() table {
	return table{"metrics", "Metrics for Prometheus, and whether nth is alive. docs/metrics.md lists them.", []setting{
		listenSetting(&c.Listen),
		{"textfile", textfile(&c.Textfile),
			"A file that node_exporter's textfile collector reads. The unit lets nth write into `/var/lib/node_exporter` and `/var/lib/prometheus/node-exporter`; another directory needs `ReadWritePaths=`. Empty is none."},
		compatibleSetting(&c.Compatible),
	}}
}

func listenSetting(at *string) setting {
	return setting{
		"listen", text{at, isListener, `an address such as ":9092" or "127.0.0.1:9092", or ""`},
		"Where `/metrics` and `/healthz` are served. `\":9092\"` is every address of the machine; `\"127.0.0.1:9092\"` is reached from this machine only. Empty is nowhere.",
	}
}

func compatibleSetting(at *bool) setting {
	return setting{
		"compatible", boolean{at},
		"Add the counters of aws-node-termination-handler, `actions_total` and `events_error_total`, for dashboards that have them.",
	}
}

// isListener tells whether something can be listened at there. A host is an IP address or a name.
func isListener(s string) bool {
	if s == "" {
		return true
	}
	host, port, err := net.SplitHostPort(s)
	number, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && bad == nil && number > 0 && !strings.ContainsAny(host, " /")
}

func textfile(at *string) text {
	return text{at, isTextfile, `an absolute path that ends with ".prom", or ""`}
}

func isTextfile(s string) bool {
	return s == "" || filepath.IsAbs(s) && filepath.Clean(s) == s && strings.HasSuffix(s, ".prom")
}

package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nth-project/nth/pkg/text"
)

// configPaths are the usual paths of a kubelet's configuration: on Amazon's EKS images, on older ones and Ubuntu's, on Bottlerocket, with kubeadm. Each
// may have drop-ins, in a directory such as "config.json.d".
var configPaths = []string{
	"/etc/kubernetes/kubelet/config.json",
	"/etc/kubernetes/kubelet/kubelet-config.json",
	"/etc/kubernetes/kubelet/config",
	"/var/lib/kubelet/config.yaml",
}

// GracefulShutdown is the kubelet's own graceful shutdown, which ends the pods when the machine shuts down.
type GracefulShutdown struct {
	// Period is how long the kubelet delays the shutdown to end pods; 0 if it does not. Critical is the part of Period that the kubelet
	// reserves for critical pods, which end last. It is 0 if the kubelet reserves nothing, or has periods by pod priority.
	Period, Critical time.Duration
}

// ReadGracefulShutdown reads the kubelet's graceful shutdown from the first of configPaths below root ("" means "/") that exists, and from its
// drop-ins, which override it. If there is no such file, it returns the zero value and no error.
func ReadGracefulShutdown(root string) (GracefulShutdown, error) {
	for _, path := range configPaths {
		path = filepath.Join("/", root, path)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var found GracefulShutdown
		dropins, _ := filepath.Glob(path + ".d/*.conf") // The pattern is valid, so that there is no error.
		slices.Sort(dropins)
		for _, file := range append([]string{path}, dropins...) {
			if err := found.read(file); err != nil {
				return GracefulShutdown{}, fmt.Errorf("reading the kubelet's configuration %s: %w", file, err)
			}
		}
		if found.Critical < 0 || found.Critical > found.Period { // The kubelet does not start with such a configuration.
			return GracefulShutdown{}, fmt.Errorf("the kubelet's configuration %s (with drop-ins) is invalid: shutdownGracePeriodCriticalPods is %s, "+
				"but must be from 0 to shutdownGracePeriod (%s); the kubelet will not start again with it", path, found.Critical, found.Period)
		}
		return found, nil
	}
	return GracefulShutdown{}, nil
}

// read reads one file of the configuration. It overrides the fields of g that the file sets, and keeps the others.
func (g *GracefulShutdown) read(path string) error {
	document, err := text.ReadFile(path, text.File)
	if err != nil {
		return err
	}
	var config struct {
		ShutdownGracePeriod              *meta.Duration `json:"shutdownGracePeriod"`
		ShutdownGracePeriodCriticalPods  *meta.Duration `json:"shutdownGracePeriodCriticalPods"`
		ShutdownGracePeriodByPodPriority []struct {
			ShutdownGracePeriodSeconds int64 `json:"shutdownGracePeriodSeconds"`
		} `json:"shutdownGracePeriodByPodPriority"`
	}
	if err := yaml.Unmarshal(document, &config); err != nil { // JSON is YAML, too.
		return text.Redacted(err)
	}
	if config.ShutdownGracePeriod != nil {
		g.Period = config.ShutdownGracePeriod.Duration
	}
	if config.ShutdownGracePeriodCriticalPods != nil {
		g.Critical = config.ShutdownGracePeriodCriticalPods.Duration
	}
	var byPriority int64
	for _, p := range config.ShutdownGracePeriodByPodPriority {
		byPriority += p.ShutdownGracePeriodSeconds
	}
	if byPriority > 0 { // The kubelet accepts only one of the two settings.
		g.Period = time.Duration(byPriority) * time.Second
	}
	return nil
}

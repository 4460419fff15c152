package node

import (
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/test/internal/lab"
)

// Ends lets a workload's pods run on a node: a server that ends so long after SIGTERM ("0s", "3s"), or "never", which
// means that it has to be killed.
func Ends(after string) lab.Option {
	return lab.Edit(func(template *corev1.PodTemplateSpec) {
		kind := corev1.HostPathDirectory
		spec := &template.Spec
		no := false
		spec.HostNetwork = true
		spec.AutomountServiceAccountToken = &no // the lab does not make the certificate that goes with a token
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "words", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: wordsDir, Type: &kind},
		}})
		c := &spec.Containers[0]
		c.Image, c.ImagePullPolicy = Image, corev1.PullNever
		c.Args = []string{"-words", "/words/$(POD)", "-ends", after}
		c.Env = append(c.Env, corev1.EnvVar{Name: "POD", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"},
		}})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "words", MountPath: "/words"})
	})
}

// Prepares has a workload's pods take that long before their containers start, as programs do that load things first.
func Prepares(takes time.Duration) lab.Option {
	return lab.Edit(func(template *corev1.PodTemplateSpec) {
		template.Spec.InitContainers = []corev1.Container{{
			Name: "prepare", Image: Image, ImagePullPolicy: corev1.PullNever, Args: []string{"-pause", takes.String()},
		}}
	})
}

// A Life is what a pod's container has written of itself.
type Life struct {
	// Address is where it answered.
	Address string
	// Terminated is when it got SIGTERM; zero if it did not.
	Terminated time.Time
	// Last is when it was last alive, after that.
	Last time.Time
	// Itself tells whether it ended by itself; else it was killed, or lives.
	Itself bool
}

// Life returns what the container of the pod has written; nothing, if it has not begun. The machine may be off.
func (n *Node) Life(t lab.TB, pod string) Life {
	t.Helper()
	life, err := n.Read(pod)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return life
}

// Read is Life for those who may not end the test.
func (n *Node) Read(pod string) (life Life, err error) {
	text, err := os.ReadFile(n.Path(path.Join(wordsDir, pod)))
	if err != nil && !os.IsNotExist(err) {
		return Life{}, fmt.Errorf("reading what the pod %s has written: %w", pod, err)
	}
	for line := range strings.Lines(string(text)) {
		line, whole := strings.CutSuffix(line, "\n")
		if !whole {
			break // it is being written
		}
		when, word, _ := strings.Cut(line, " ")
		at, err := time.Parse(time.RFC3339Nano, when)
		if err != nil {
			return Life{}, fmt.Errorf("reading what the pod %s has written: %w", pod, err)
		}
		address, serves := strings.CutPrefix(word, "serves ")
		switch {
		case serves:
			life = Life{Address: address}
		case word == "terminated":
			life.Terminated, life.Last = at, at
		default:
			life.Last, life.Itself = at, word == "ended"
		}
	}
	return life, nil
}

// String tells what became of it after SIGTERM.
func (l Life) String() string {
	switch {
	case l.Terminated.IsZero():
		return "no SIGTERM"
	case l.Itself:
		return fmt.Sprintf("ended by itself after %.1f s", l.Last.Sub(l.Terminated).Seconds())
	default:
		return fmt.Sprintf("killed after %.1f s", l.Last.Sub(l.Terminated).Seconds())
	}
}

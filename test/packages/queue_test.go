package packages

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/sqs/sqstest"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
	"github.com/nth-project/nth/test/internal/region"
)

// installQueue boots a machine and installs nth-queue there, as an administrator does who has the file.
func installQueue(t *testing.T, suite string) *machine.Machine {
	t.Helper()
	m := machine.Boot(t, suite)
	installQueueVersion(t, m, host.Older)
	return m
}

func installQueueVersion(t *testing.T, m *machine.Machine, v host.Version) {
	t.Helper()
	m.Put(t, host.PackageOf(t, "nth-queue", v, "deb"), "/root/nth-queue.deb")
	m.Run(t, "dpkg", "--install", "/root/nth-queue.deb")
}

// queueMustBe fails the test unless nth-queue is so enabled and so active.
func queueMustBe(t *testing.T, m *machine.Machine, enabled, active string) {
	t.Helper()
	isEnabled := strings.TrimSpace(m.Try(t, "systemctl", "is-enabled", "nth-queue").Stdout)
	isActive := strings.TrimSpace(m.Try(t, "systemctl", "is-active", "nth-queue").Stdout)
	if isEnabled != enabled || isActive != active {
		t.Errorf("nth-queue is %q and %q, want it to be %s and %s", isEnabled, isActive, enabled, active)
	}
}

func TestNTHQueueWaitsForAQueueToBeNamed(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		m := installQueue(t, suite)
		queueMustBe(t, m, "disabled", "inactive")
		m.Run(t, "systemctl", "preset", "nth-queue")
		queueMustBe(t, m, "disabled", "inactive")
		m.Run(t, "systemctl", "--failed", "--quiet", "is-system-running")

		// Started all the same, it says once what is missing.
		for _, row := range []struct{ kubeconfig, status string }{{"", "243"}, {"none", "78"}} {
			if row.kubeconfig != "" {
				m.Write(t, "/etc/nth/nth-queue.kubeconfig", row.kubeconfig)
			}
			m.Try(t, "systemctl", "start", "nth-queue")
			m.Await(t, "nth-queue gives up", func() bool { return m.Property(t, "nth-queue", "ActiveState") == "failed" })
			if got := m.Property(t, "nth-queue", "ExecMainStatus"); got != row.status {
				t.Errorf("with the kubeconfig %q it ended with status %s, want %s", row.kubeconfig, got, row.status)
			}
		}
		if restarts := m.Property(t, "nth-queue", "NRestarts"); restarts != "0" {
			t.Errorf("it was tried again %s times", restarts)
		}
	})
}

// queueExposure is what "systemd-analyze security" may find at most, in tenths.
const queueExposure = "13"

func TestSystemdFindsNothingToSayAgainstTheUnitOfNTHQueue(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		m := installQueue(t, suite)
		if said := m.Run(t, "systemd-analyze", "verify", "--man=no", "nth-queue.service"); said != "" {
			t.Errorf("systemd-analyze verify says\n%s", said)
		}
		o := m.Try(t, "systemd-analyze", "security", "--no-pager", "--threshold="+queueExposure, "nth-queue.service")
		if o.Status != 0 {
			t.Errorf("systemd-analyze security says\n%s", o.Stdout)
		}
		for _, e := range m.Journal(t, "--boot", "--priority=warning", "--grep=nth-queue.service") {
			t.Errorf("systemd says %q", e.Message())
		}
	})
}

// The service has no rights on the machine but to read a copy of the kubeconfig, which is root's.
func TestNTHQueueDrainsAsAServiceAndGoesOnAfterAnUpgrade(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		messages := sqstest.New()
		t.Cleanup(messages.Close)
		aws := httptest.NewServer(messages)
		t.Cleanup(aws.Close)
		m := installQueue(t, suite)
		configureQueue(t, m, messages.URL(), aws.URL, "")
		node, instance := addInstance(t)
		node.AddDeployment(t, "web", 2)

		m.Run(t, "systemctl", "enable", "--now", "nth-queue")
		queueMustBe(t, m, "enabled", "active")
		if user := m.Run(t, "stat", "--format=%U", "/proc/"+m.Property(t, "nth-queue", "MainPID")); user == "root" {
			t.Error("nth-queue runs as root")
		}
		messages.Send(spot(instance))
		node.WaitEmpty(t)
		m.Await(t, "the queue is empty", func() bool { return messages.Visible()+messages.InFlight() == 0 })
		mustBeFoundByName(t, m)

		before := m.Property(t, "nth-queue", "MainPID")
		installQueueVersion(t, m, host.Newer)
		queueMustBe(t, m, "enabled", "active")
		if after := m.Property(t, "nth-queue", "MainPID"); after == before {
			t.Error("the old program still runs after the upgrade")
		}
		if said := m.Run(t, "nth-queue", "version"); !strings.HasPrefix(said, "nth-queue version "+string(host.Newer)+" ") {
			t.Errorf("the program says %q", said)
		}
		other, instance := addInstance(t)
		other.AddDeployment(t, "web", 2)
		messages.Send(spot(instance))
		other.WaitEmpty(t)
		m.Run(t, "systemctl", "stop", "nth-queue")
		if status := m.Property(t, "nth-queue", "ExecMainStatus"); status != "0" {
			t.Errorf("nth-queue stopped with status %s", status)
		}
	})
}

// mustBeFoundByName fails the test unless everything in the journal that nth-queue has written is found by its unit, and
// by its name.
func mustBeFoundByName(t *testing.T, m *machine.Machine) {
	t.Helper()
	if len(m.Journal(t, "--boot", "--unit=nth-queue", "--identifier=nth-queue", "MESSAGE_ID="+systemd.Drained)) == 0 {
		t.Errorf("journalctl --identifier=nth-queue does not tell of the drain")
	}
	for _, e := range m.Journal(t, "--boot", "_SYSTEMD_UNIT=nth-queue.service") {
		if e["SYSLOG_IDENTIFIER"] != "nth-queue" {
			t.Errorf("%q is said by %s", e.Message(), e["SYSLOG_IDENTIFIER"])
		}
	}
}

// configureQueue writes what an administrator writes, with more settings, and credentials for AWS, which an instance's role brings otherwise.
func configureQueue(t *testing.T, m *machine.Machine, url, endpoint, more string) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(lab.Shared(t).AddUser(t, "nth-queue", "nth-queue").Kubeconfig)
	if err == nil {
		err = clientcmdapi.FlattenConfig(config)
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	m.Write(t, "/etc/nth/nth-queue.kubeconfig", string(text))
	m.Run(t, "chmod", "600", "/etc/nth/nth-queue.kubeconfig")
	m.Write(t, "/etc/nth/nth-queue.toml.d/50-site.toml", fmt.Sprintf("[queue]\nurl = %q\n"+
		"%s", url, more))
	m.Run(t, "chmod", "644", "/etc/nth/nth-queue.toml.d/50-site.toml") // as an editor leaves it
	m.Write(t, "/etc/systemd/system/nth-queue.service.d/50-test.conf", "[Service]\n"+
		"Environment=AWS_ACCESS_KEY_ID=AKIDEXAMPLE0000001 AWS_SECRET_ACCESS_KEY=secret AWS_EC2_METADATA_DISABLED=true "+
		"AWS_REGION=eu-central-1 AWS_ENDPOINT_URL="+endpoint+"\n")
	m.Run(t, "systemctl", "daemon-reload")
	bind(t)
}

// bind gives the group its rights. That those of the manifest are enough is judged in test/rbac.
func bind(t *testing.T) {
	t.Helper()
	_, err := lab.Shared(t).Admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "nth-queue-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "nth-queue"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// addInstance adds a node that says which EC2 instance it is.
func addInstance(t *testing.T) (*lab.Node, string) {
	t.Helper()
	node := lab.Shared(t).AddNode(t)
	instance := fmt.Sprintf("i-%017x", time.Now().UnixNano())
	region.Bind(t, lab.Shared(t), node, instance)
	return node, instance
}

func spot(instance string) string {
	text, _ := json.Marshal(map[string]any{ // texts always encode
		"id": instance, "source": "aws.ec2", "detail-type": "EC2 Spot Instance Interruption Warning",
		"time": time.Now().UTC().Format(time.RFC3339), "detail": map[string]string{"instance-id": instance, "instance-action": "terminate"},
	})
	return string(text)
}

func TestBothPackagesLiveOnOneHostAndLeaveNothing(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		h := bareHost(t, suite)
		h.Run(t, "rm", "-r", "/etc/nth")
		before := files(t, h)
		nth := h.PutPackage(t, host.Older, "deb")
		installQueueVersion(t, h.Machine, host.Older)
		h.Run(t, "dpkg", "--install", nth)
		queueMustBe(t, h.Machine, "disabled", "inactive")

		h.Run(t, "dpkg", "--purge", "nth")
		h.Run(t, "test", "-f", "/etc/nth/nth-queue.toml")
		h.Run(t, "dpkg", "--purge", "nth-queue")
		h.Run(t, "rm", nth, "/root/nth-queue.deb")
		for _, file := range files(t, h) {
			if _, found := slices.BinarySearch(before, file); !found {
				t.Errorf("after the purge there is %s", file)
			}
		}
	})
}

func TestTheRPMOfNTHQueueLivesItsLife(t *testing.T) {
	t.Parallel()
	m := machine.Boot(t, "bookworm")
	for _, v := range []host.Version{host.Older, host.Newer} {
		m.Put(t, host.PackageOf(t, "nth-queue", v, "rpm"), "/root/"+string(v)+".rpm")
	}
	m.Run(t, "rpm", "--install", "--nodeps", "/root/"+string(host.Older)+".rpm")
	queueMustBe(t, m, "disabled", "inactive")
	m.Run(t, "systemctl", "enable", "nth-queue")
	m.Run(t, "rpm", "--upgrade", "--nodeps", "/root/"+string(host.Newer)+".rpm")
	queueMustBe(t, m, "enabled", "inactive")
	if said := strings.TrimSpace(m.Try(t, "rpm", "--verify", "--nodeps", "nth-queue").Stdout); said != "" {
		t.Errorf("rpm --verify says %q", said)
	}
	m.Run(t, "rpm", "--erase", "nth-queue")
	if said := m.Run(t, "find", "/etc", "/usr/lib/systemd", "/usr/bin", "/usr/share", "-name", "*nth-queue*"); said != "" {
		t.Errorf("after the removal there is\n%s", said)
	}
}

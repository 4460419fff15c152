package packages

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
	"github.com/nth-project/nth/test/internal/region"
)

// installQueue installs or upgrades nth-queue, as an administrator does who has the file.
func installQueue(t *testing.T, m *machine.Machine, v host.Version) {
	t.Helper()
	m.Put(t, host.PackageOf(t, "nth-queue", v, "deb"), "/root/nth-queue.deb")
	m.Run(t, "dpkg", "--install", "/root/nth-queue.deb")
}

// One host from the installation to the purge. The service has no rights on the machine but to read a copy of the kubeconfig, which is
// root's.
func TestQueue_FromInstallationToPurge(t *testing.T) {
	machine.OnSuites(t, func(t *testing.T, suite string) {
		m := machine.Boot(t, suite)
		before := files(t, m)
		installQueue(t, m, host.Older)
		mustBe(t, m, "nth-queue", "disabled", "inactive")
		m.Run(t, "systemctl", "preset", "nth-queue")
		mustBe(t, m, "nth-queue", "disabled", "inactive")
		mustBeSound(t, m, "nth-queue.service", "13")

		// Started without what it needs, it says once what is missing, as its check does.
		const missing = "the setting queue.url must be set"
		m.Try(t, "systemctl", "start", "nth-queue")
		lab.Await(t, "nth-queue gives up", func() bool { return m.Property(t, "nth-queue", "ActiveState") == "failed" })
		if got := m.Property(t, "nth-queue", "ExecMainStatus"); got != "78" {
			t.Errorf("without settings it ended with status %s, want 78", got)
		}
		for _, command := range [][]string{{"journalctl", "--unit=nth-queue", "--output=cat"}, {"nth-queue", "check"}} {
			if said := m.Try(t, command[0], command[1:]...); !strings.Contains(said.Stdout, missing) {
				t.Errorf("%s does not say %q:\n%s", strings.Join(command, " "), missing, said.Stdout)
			}
		}
		if restarts := m.Property(t, "nth-queue", "NRestarts"); restarts != "0" {
			t.Errorf("it was tried again %s times", restarts)
		}

		aws := region.New(t)
		m.Write(t, "/etc/nth/nth-queue.toml.d/50-site.toml", "[queue]\nurl = \"https://sqs.eu-central-1.amazonaws.com/123456789012/interruptions\"\n")
		m.Run(t, "chmod", "644", "/etc/nth/nth-queue.toml.d/50-site.toml")
		m.Try(t, "systemctl", "restart", "nth-queue")
		if status, said := m.Property(t, "nth-queue", "ExecMainStatus"), m.Try(t, "journalctl", "--unit=nth-queue", "--output=cat").Stdout; status != "78" ||
			!strings.Contains(said, "found neither a kubeconfig") || m.Property(t, "nth-queue", "NRestarts") != "0" {
			t.Errorf("without a kubeconfig it ended with status %s, and said\n%s", status, said)
		}
		configureQueue(t, m, aws)
		m.Run(t, "systemctl", "enable", "--now", "nth-queue")
		mustBe(t, m, "nth-queue", "enabled", "active")
		if user := m.Run(t, "stat", "--format=%U", "/proc/"+m.Property(t, "nth-queue", "MainPID")); user == "root" {
			t.Error("nth-queue runs as root")
		}
		mustDrainByMessage(t, aws)
		aws.WaitEmpty(t)
		if len(m.Journal(t, "--boot", "--unit=nth-queue", "--identifier=nth-queue", "MESSAGE_ID="+systemd.Drained)) == 0 {
			t.Errorf("journalctl --identifier=nth-queue does not show the drain")
		}

		process := m.Property(t, "nth-queue", "MainPID")
		installQueue(t, m, host.Newer)
		mustBe(t, m, "nth-queue", "enabled", "active")
		if after := m.Property(t, "nth-queue", "MainPID"); after == process {
			t.Error("the old program still runs after the upgrade")
		}
		if said := m.Run(t, "nth-queue", "--version"); !strings.HasPrefix(said, "nth-queue version "+string(host.Newer)+" ") {
			t.Errorf("the program says %q", said)
		}
		mustDrainByMessage(t, aws)
		m.Run(t, "systemctl", "stop", "nth-queue")
		if status := m.Property(t, "nth-queue", "ExecMainStatus"); status != "0" {
			t.Errorf("nth-queue stopped with status %s", status)
		}

		// Both packages live on one host, and either goes without the other.
		m.Put(t, host.Package(t, host.Older, "deb"), "/root/nth.deb")
		m.Run(t, "dpkg", "--install", "/root/nth.deb")
		m.Run(t, "dpkg", "--purge", "nth")
		m.Run(t, "test", "-f", "/etc/nth/nth-queue.toml")
		m.Run(t, "sh", "-c", "rm -r /etc/nth/nth-queue.kubeconfig /etc/nth/nth-queue.toml.d/* /etc/systemd/system/nth-queue.service.d /root/*.deb")
		m.Run(t, "dpkg", "--purge", "nth-queue")
		mustHaveOnly(t, m, before)
	})
}

// configureQueue writes what an administrator writes, and credentials for AWS, which an instance's role brings otherwise. It gives the
// group more rights than it needs: that those of the manifest are enough is judged in test/queue.
func configureQueue(t *testing.T, m *machine.Machine, aws *region.Region) {
	t.Helper()
	m.Write(t, "/etc/nth/nth-queue.kubeconfig", lab.Shared(t).AddUser(t, "nth-queue", "nth-queue").Portable(t, nil))
	m.Write(t, "/etc/nth/nth-queue.toml.d/50-site.toml", fmt.Sprintf("[queue]\nurl = %q\n", aws.QueueURL))
	m.Run(t, "chmod", "644", "/etc/nth/nth-queue.toml.d/50-site.toml") // as an editor leaves it
	m.Write(t, "/etc/systemd/system/nth-queue.service.d/50-test.conf", "[Service]\n"+
		"Environment=AWS_ACCESS_KEY_ID=AKIDEXAMPLE0000001 AWS_SECRET_ACCESS_KEY=secret AWS_EC2_METADATA_DISABLED=true "+
		"AWS_REGION="+region.Name+" AWS_ENDPOINT_URL="+aws.URL+"\n")
	m.Run(t, "systemctl", "daemon-reload")
	lab.Shared(t).Kubectl(t, "", "create", "clusterrolebinding", m.Name, "--clusterrole=cluster-admin", "--group=nth-queue")
}

// mustDrainByMessage adds a node, sends that its instance is interrupted, and waits until it is empty.
func mustDrainByMessage(t *testing.T, aws *region.Region) {
	t.Helper()
	node, instance := aws.AddInstance(t, lab.Shared(t), nil)
	node.AddDeployment(t, "web", 2)
	aws.Send(t, region.Spot(instance))
	node.WaitEmpty(t)
}

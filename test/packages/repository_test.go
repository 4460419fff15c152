package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/nth-project/nth/test/internal/apt"
	"github.com/nth-project/nth/test/internal/host"
)

// What packaging/repository makes is read by the real apt and dnf, which refuse it if a signature or a checksum is wrong.
func TestRepository_IsReadByAptAndDnf(t *testing.T) {
	t.Parallel()
	err := apt.Install(t.Context(), map[string]string{
		"apt-ftparchive": "apt-utils", "createrepo_c": "createrepo-c", "dnf": "dnf", "gpg": "gpg",
	}, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	repository, scratch := t.TempDir(), t.TempDir()
	run := func(script string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
		command.Dir = scratch
		command.Env = append(os.Environ(), "GNUPGHOME="+scratch, "REPOSITORY="+repository, "SOURCE_DATE_EPOCH=1763683200", "LC_ALL=C")
		said, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, said)
		}
		return string(said)
	}
	for _, family := range []string{"deb", "rpm"} {
		for _, version := range []host.Version{host.Older, host.Newer} {
			file := host.Package(t, version, family)
			if err := os.Link(file, filepath.Join(repository, filepath.Base(file))); err != nil {
				run("cp " + file + " $REPOSITORY")
			}
		}
	}
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	run(top + `/packaging/repository "$REPOSITORY"
		gpg --quiet --batch --passphrase '' --quick-generate-key 'test <test@test.invalid>' ed25519 sign never
		gpg --armor --export >key.asc
		gpg --armor --detach-sign --output "$REPOSITORY/Release.gpg" "$REPOSITORY/Release"
		gpg --armor --detach-sign "$REPOSITORY/repodata/repomd.xml"
		gpgconf --kill all`)

	t.Run("apt", func(t *testing.T) {
		said := run(`mkdir -p apt/lists/partial apt/archives/partial
			echo "deb [signed-by=$PWD/key.asc] file:$REPOSITORY ./" >apt/sources.list
			printf '%s "%s";\n' Dir::Etc::SourceList "$PWD/apt/sources.list" Dir::Etc::SourceParts /dev/null \
				Dir::State::lists "$PWD/apt/lists" Dir::Cache "$PWD/apt" APT::Sandbox::User root >apt.conf
			export APT_CONFIG=$PWD/apt.conf
			apt-get -qq update
			apt-get -qq download nth
			apt-cache policy nth; ls`)
		if !strings.Contains(said, "Candidate: 0.0.2-1\n") || !strings.Contains(said, "nth_0.0.2-1_"+runtime.GOARCH+".deb\n") {
			t.Errorf("apt says\n%s\nwant the newer package as the candidate, and fetched", said)
		}
	})
	t.Run("dnf", func(t *testing.T) {
		said := run(`dnf --quiet --assumeyes --installroot="$PWD/dnf" --releasever=1 --disablerepo='*' --repofrompath="nth,file://$REPOSITORY" \
			--setopt=nth.repo_gpgcheck=1 --setopt="nth.gpgkey=file://$PWD/key.asc" repoquery --latest-limit=1 nth`)
		if !strings.Contains(said, "nth-0:0.0.2-1.") {
			t.Errorf("dnf says\n%s\nwant the newer package", said)
		}
	})
}

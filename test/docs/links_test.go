package docs_test

import (
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/test/internal/docs"
)

// top is the project's top directory, from here.
const top = "../.."

func pages(t *testing.T) []docs.Page {
	t.Helper()
	all, err := docs.Read(top)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestEveryLinkLeadsSomewhere(t *testing.T) {
	all := pages(t)
	anchors := map[string][]string{}
	for _, page := range all {
		anchors[page.Name] = page.Anchors
	}
	seen := 0
	for _, page := range all {
		for _, link := range page.Links {
			seen++
			to, err := url.Parse(link)
			if err != nil {
				t.Errorf("%s: %v", page.Name, err)
				continue
			}
			if to.Scheme != "" || to.Host != "" {
				if to.Scheme != "https" || !strings.Contains(to.Host, ".") || strings.ContainsAny(link, " <>") {
					t.Errorf("%s: %q is no address for everybody", page.Name, link)
				}
				continue
			}
			file := page.Name
			if to.Path != "" {
				file = path.Join(path.Dir(page.Name), to.Path)
			}
			if _, err := os.Stat(filepath.Join(top, file)); err != nil {
				t.Errorf("%s: the link %q leads nowhere: %v", page.Name, link, err)
			} else if to.Fragment != "" && !slices.Contains(anchors[file], to.Fragment) {
				t.Errorf("%s: the link %q leads to none of the headings %q", page.Name, link, anchors[file])
			}
		}
	}
	if seen < 50 {
		t.Errorf("there are only %d links: the pages are read wrongly", seen)
	}
}

// elsewhere is how a page that is shipped leads to a file of the project that is not.
var elsewhere = regexp.MustCompile("^" + regexp.QuoteMeta("https://github.com/nth-project/nth/blob/") + `\w+/([^#]+)`)

// On a node nothing is beside a page but what the package brings.
func TestAPageThatIsShippedLeadsOnlyToWhatIsShippedOrToTheProject(t *testing.T) {
	for name, config := range map[string]string{"nth": "nfpm.yaml", "nth-queue": "packaging/queue/nfpm.yaml"} {
		dir := filepath.Join(t.TempDir(), name)
		script := exec.CommandContext(t.Context(), "bash", "-euc", ". packaging/source.sh; pages "+dir+" "+config)
		script.Dir = top
		if said, err := script.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.md"))
		if err != nil || len(files) < 2 {
			t.Fatalf("%s ships %q, %v", name, files, err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, link := range docs.Parse(file, source).Links {
				at, _, _ := strings.Cut(link, "#")
				at = filepath.Join(dir, at)
				if project := elsewhere.FindStringSubmatch(link); project != nil {
					at = filepath.Join(top, project[1])
				} else if strings.HasPrefix(link, "https://") {
					continue
				}
				if _, err := os.Stat(at); err != nil {
					t.Errorf("%s: %s leads nowhere: %v", filepath.Base(file), link, err)
				}
			}
		}
	}
}

func TestTheIndexNamesEveryPage(t *testing.T) {
	all := pages(t)
	at := slices.IndexFunc(all, func(p docs.Page) bool { return p.Name == "docs/README.md" })
	if at < 0 {
		t.Fatal("there is no index")
	}
	index := all[at]
	for _, page := range all {
		name, beside := strings.CutPrefix(page.Name, "docs/")
		if beside && page.Name != index.Name && !slices.Contains(index.Links, name) {
			t.Errorf("%s does not name %s", index.Name, page.Name)
		}
	}
}

// runbook is the link of an alert to what one may do about it.
var runbook = regexp.MustCompile(`runbook_url: https://\S+/docs/troubleshooting\.md#(\S+)`)

func TestAlerts_LeadToTheirPlaceInTroubleshooting(t *testing.T) {
	all := pages(t)
	at := slices.IndexFunc(all, func(p docs.Page) bool { return p.Name == "docs/troubleshooting.md" })
	page, err := os.ReadFile(filepath.Join(top, all[at].Name))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"nth", "nth-queue"} {
		rules, err := os.ReadFile(filepath.Join(top, "packaging/prometheus", name+".rules.yml"))
		if err != nil {
			t.Fatal(err)
		}
		found := runbook.FindAllStringSubmatch(string(rules), -1)
		if alerts := strings.Count(string(rules), "- alert:"); len(found) != alerts {
			t.Errorf("%s: %d of %d alerts lead to the page", name, len(found), alerts)
		}
		for _, link := range found {
			if !slices.Contains(all[at].Anchors, link[1]) && !strings.Contains(string(page), `<a id="`+link[1]+`">`) {
				t.Errorf("%s: the page has no place %q", name, link[1])
			}
		}
	}
}

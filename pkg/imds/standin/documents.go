package standin

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// documents are the bodies that are served, by their path below the version: "meta-data/instance-id".
type documents struct {
	mu   sync.RWMutex
	body map[string]string
}

// get returns the document at path or, where path is a folder, the list of what it holds.
func (d *documents) get(path string) (body string, found bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if body, found = d.body[path]; found {
		return body, true
	}
	entries := d.list(path)
	return strings.Join(entries, "\n"), len(entries) > 0
}

// list returns the names in a folder, sorted, folders with a slash. The top folder has no slashes, as on EC2.
func (d *documents) list(folder string) []string {
	prefix, slash := folder+"/", "/"
	if folder == "" {
		prefix, slash = "", ""
	}
	names := map[string]bool{}
	for path := range d.body {
		below, inside := strings.CutPrefix(path, prefix)
		if !inside {
			continue
		}
		name, _, isFolder := strings.Cut(below, "/")
		if isFolder {
			name += slash
		}
		names[name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

func (d *documents) set(path, body string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.body == nil {
		d.body = map[string]string{}
	}
	d.body[path] = body
}

// unset removes a document, and returns whether there was one.
func (d *documents) unset(path string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, found := d.body[path]
	delete(d.body, path)
	return found
}

// Get returns what is served at a path, as Set takes it: a document or, where the path is a folder, the list of what it holds.
func (s *Service) Get(path string) (body string, found bool) {
	return s.documents.get(DocumentPath(path))
}

// Set serves body, as it is, at a path such as "/latest/meta-data/instance-id" or "meta-data/instance-id". It replaces
// whatever is served there, also an announcement, until the next change of that announcement.
func (s *Service) Set(path, body string) { s.documents.set(DocumentPath(path), body) }

// Unset removes the document at path, and tells whether there was one: from now on it is answered with 404.
func (s *Service) Unset(path string) bool { return s.documents.unset(DocumentPath(path)) }

// DocumentPath is where a document lies: without slashes at its ends and without a version.
func DocumentPath(path string) string {
	_, document := SplitVersion(path)
	return document
}

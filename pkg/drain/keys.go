package drain

// KeyPrefix begins every key of our own on Nodes, Pods, Leases and Events of Kubernetes. A prefix is a DNS name that its project owns:
// it follows from the module's path in go.mod, and docs/release.md says how both are changed together.
const KeyPrefix = "nth-project.github.io/"

// oldPrefix was in its place in builds before the first release. What bears it may still be on a Node, or in people's manifests.
const oldPrefix = "nth/"

// KeyValue returns what a map of annotations or labels has under a key that begins with KeyPrefix, or else under the same key as
// builds before the first release wrote it.
func KeyValue(all map[string]string, key string) (value string, there bool) {
	if value, there = all[key]; !there {
		value, there = all[OldKey(key)]
	}
	return value, there
}

// OldKey is a key as builds before the first release wrote it.
func OldKey(key string) string { return oldPrefix + key[len(KeyPrefix):] }

// KeyPatch is the part of a merge patch that sets a key to a value, or removes it if that is nil, on what has these annotations or labels
// now. A value under the old key goes.
func KeyPatch(now map[string]string, key string, value any) map[string]any {
	patch := map[string]any{key: value}
	if _, there := now[OldKey(key)]; there {
		patch[OldKey(key)] = nil
	}
	return patch
}

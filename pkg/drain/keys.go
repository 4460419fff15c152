package drain

// KeyPrefix begins all keys of ours on Nodes, Pods, Leases and Events. A prefix is a DNS name that the project owns. It follows from the
// module's path in go.mod; docs/release.md says how both are changed together.
const KeyPrefix = "nth-project.github.io/"

// oldPrefix was the prefix in builds before the first release. Keys with it may still be on Nodes, or in people's manifests.
const oldPrefix = "nth/"

// KeyValue returns the value of a key that begins with KeyPrefix in a map of annotations or labels, or else that of its OldKey.
func KeyValue(all map[string]string, key string) (value string, there bool) {
	if value, there = all[key]; !there {
		value, there = all[OldKey(key)]
	}
	return value, there
}

// OldKey returns a key with the prefix of builds before the first release.
func OldKey(key string) string { return oldPrefix + key[len(KeyPrefix):] }

// KeyPatch returns the part of a merge patch that sets a key in a map of annotations or labels, or removes it if value is nil. now is the
// map's content; an OldKey in it is removed.
func KeyPatch(now map[string]string, key string, value any) map[string]any {
	patch := map[string]any{key: value}
	if _, there := now[OldKey(key)]; there {
		patch[OldKey(key)] = nil
	}
	return patch
}

package apitest

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// own keeps metadata.managedFields true to a write by a manager, to the Node itself ("") or to a subresource. What it adds or
// changes is its own from then on and nobody else's; what it sets to the value that is there stays whose it was; what it removes is
// nobody's any more (Update in structured-merge-diff's merge/update.go). Of a Node, that covers its labels, annotations and spec,
// and of its status; a list is one field, but for that of conditions, and an object that holds others is none.
func own(before, after *corev1.Node, manager, subresource string, at metav1.Time) {
	changed, lost := difference(fieldsOf(before, subresource), fieldsOf(after, subresource))
	if len(changed)+len(lost) == 0 {
		return
	}
	var entries []metav1.ManagedFieldsEntry
	mine := metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1", Subresource: subresource,
	}
	owned := map[string]bool{}
	for _, entry := range after.ManagedFields {
		if entry.Manager == manager && entry.Operation == mine.Operation && entry.Subresource == subresource {
			mine, owned = entry, parse(entry)
		} else if entry, left := disown(entry, changed, lost); left {
			entries = append(entries, entry)
		}
	}
	maps.DeleteFunc(owned, func(path string, _ bool) bool { return lost[path] })
	maps.Copy(owned, changed)
	if len(owned) > 0 {
		mine.FieldsV1, mine.Time = build(owned), &at
		entries = append(entries, mine)
	}
	after.ManagedFields = entries
}

// difference returns the paths that are new or have another value, and those that are no more.
func difference(old, fresh map[string]any) (changed, lost map[string]bool) {
	changed, lost = map[string]bool{}, map[string]bool{}
	for path, value := range fresh {
		if was, ok := old[path]; !ok || !reflect.DeepEqual(was, value) {
			changed[path] = true
		}
	}
	for path := range old {
		if _, ok := fresh[path]; !ok {
			lost[path] = true
		}
	}
	return changed, lost
}

// disown takes fields from somebody else's entry, and reports whether anything is left of it.
func disown(entry metav1.ManagedFieldsEntry, changed, lost map[string]bool) (metav1.ManagedFieldsEntry, bool) {
	fields := parse(entry)
	count := len(fields)
	maps.DeleteFunc(fields, func(path string, _ bool) bool { return changed[path] || lost[path] })
	if len(fields) < count {
		entry.FieldsV1 = build(fields)
	}
	return entry, len(fields) > 0 || count == 0
}

// fieldsOf are the fields of a Node, or of a subresource, that can be owned, by their paths.
func fieldsOf(node *corev1.Node, subresource string) map[string]any {
	fields := map[string]any{}
	put := func(path string, of any) {
		text, err := json.Marshal(of)
		var tree any
		if err == nil && json.Unmarshal(text, &tree) == nil {
			collectFields(fields, path, tree)
		}
	}
	if subresource == statusResource {
		status := node.Status
		status.Conditions = nil
		put("f:status", status)
		for _, c := range node.Status.Conditions {
			item := fmt.Sprintf("f:status\x00f:conditions\x00k:{\"type\":%q}", c.Type)
			put(item, c)
			fields[item+"\x00."] = true // that it is there
		}
		return fields
	}
	put("f:metadata\x00f:labels", node.Labels)
	put("f:metadata\x00f:annotations", node.Annotations)
	put("f:spec", node.Spec)
	return fields
}

func collectFields(into map[string]any, path string, of any) {
	switch of := of.(type) {
	case nil:
	case map[string]any:
		for name, sub := range of {
			collectFields(into, path+"\x00f:"+name, sub)
		}
	default:
		into[path] = of
	}
}

// parse reads the paths of an entry's fields.
func parse(entry metav1.ManagedFieldsEntry) map[string]bool {
	paths := map[string]bool{}
	var tree map[string]any
	if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &tree) != nil {
		return paths
	}
	var walk func(path string, of map[string]any)
	walk = func(path string, of map[string]any) {
		if len(of) == 0 && path != "" {
			paths[path] = true
		}
		for name, sub := range of {
			below, _ := sub.(map[string]any)
			walk(strings.TrimPrefix(path+"\x00"+name, "\x00"), below)
		}
	}
	walk("", tree)
	return paths
}

func build(paths map[string]bool) *metav1.FieldsV1 {
	tree := map[string]any{}
	for path := range paths {
		at := tree
		for name := range strings.SplitSeq(path, "\x00") {
			sub, ok := at[name].(map[string]any)
			if !ok {
				sub = map[string]any{}
				at[name] = sub
			}
			at = sub
		}
	}
	text, _ := json.Marshal(tree) // maps of strings always encode
	return metav1.NewFieldsV1(string(text))
}

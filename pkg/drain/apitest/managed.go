package apitest

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The fields of a manager. nth asks only whether the cordon is among them.
const (
	ownsCordon = `{"f:spec":{"f:unschedulable":{}}}`
	ownsOther  = `{"f:metadata":{}}`
)

// own records in the managed fields of an updated Node which manager has written it. A field belongs to the manager that has changed its value
// last. A manager that writes the same value does not get it (staging/src/k8s.io/apimachinery/pkg/util/managedfields).
func own(before, after *corev1.Node, manager string, at metav1.Time) {
	changed := before.Spec.Unschedulable != after.Spec.Unschedulable
	mine := metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(ownsOther),
	}
	var entries []metav1.ManagedFieldsEntry
	for _, entry := range slices.Clone(after.ManagedFields) {
		if changed && string(entry.FieldsV1.GetRawBytes()) == ownsCordon {
			entry.FieldsV1 = metav1.NewFieldsV1(ownsOther)
		}
		if entry.Manager == manager && entry.Operation == mine.Operation {
			mine = entry
		} else {
			entries = append(entries, entry)
		}
	}
	if changed && after.Spec.Unschedulable {
		mine.FieldsV1 = metav1.NewFieldsV1(ownsCordon)
	}
	mine.Time = &at
	after.ManagedFields = append(entries, mine)
}

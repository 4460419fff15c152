package apitest

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AddVolume makes a claim in the namespace default that is bound to a volume of its own: one with a CSI driver and handle,
// or a local one where driver is empty.
func (s *Server) AddVolume(claim, driver, handle string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	volume := &corev1.PersistentVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + claim},
	}
	if driver != "" {
		volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}
	}
	s.volumes[claim] = volume
}

func (s *Server) getClaim(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	volume := s.volumes[r.PathValue("name")]
	if volume == nil || r.PathValue("namespace") != "default" {
		NoRelationship()(w, r)
		return
	}
	write(w, http.StatusOK, &corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: r.PathValue("name")},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: volume.Name},
	})
}

func (s *Server) getVolume(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, volume := range s.volumes {
		if volume.Name == r.PathValue("name") {
			write(w, http.StatusOK, volume)
			return
		}
	}
	NoRelationship()(w, r)
}

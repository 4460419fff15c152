// Package krusty stands for the package of that name of kustomize, so that nth is not linked with it. k8s.io/kubectl can build what a
// kustomization.yaml describes; nth uses nothing but the filters of kubectl drain. The real one imports "plugin", for which a linker with a C
// compiler keeps every method: the program would be three times as large.
package krusty

import "errors"

// ReorderOptionLegacy is the option that kubectl chooses.
const ReorderOptionLegacy = "legacy"

// Options are the options that kubectl sets.
type Options struct{ Reorder string }

// MakeDefaultOptions returns the default options.
func MakeDefaultOptions() *Options { return &Options{} }

// Kustomizer builds nothing.
type Kustomizer struct{}

// MakeKustomizer returns a Kustomizer.
func MakeKustomizer(*Options) *Kustomizer { return &Kustomizer{} }

// Run returns an error. Nothing in nth calls it.
func (*Kustomizer) Run(any, string) (Resources, error) {
	return Resources{}, errors.New("kustomize is not part of this program")
}

// Resources are what a Kustomizer would have built.
type Resources struct{}

// AsYaml returns nothing.
func (Resources) AsYaml() ([]byte, error) { return nil, nil }

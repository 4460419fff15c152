module sigs.k8s.io/kustomize/api

go 1.24

package lab

// What the objects of the lab are labelled with. kwok.yaml acts on the first two.
const (
	// SimulatedLabel marks a Node whose kubelet kwok plays.
	SimulatedLabel = "lab.nth/simulated"
	// TerminatesLabel says when a deleted pod goes, if that is not at once.
	TerminatesLabel = "lab.nth/terminates"
	// poolLabel holds together the nodes that a workload may run on.
	poolLabel = "lab.nth/pool"
	// appLabel names the workload of a pod.
	appLabel = "app"
)

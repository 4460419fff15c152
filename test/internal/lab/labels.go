package lab

// What the objects of the lab are labelled with. kwok.yaml acts on the first four.
const (
	// simulatedLabel marks a Node whose kubelet kwok plays.
	simulatedLabel = "lab.nth/simulated"
	// startingLabel marks a Node whose kubelet has been started and is not Ready yet.
	startingLabel = "lab.nth/starting"
	// terminatesLabel says when a deleted pod goes, if that is not at once.
	terminatesLabel = "lab.nth/terminates"
	// endsLabel holds the phase in which a pod ends as soon as it starts.
	endsLabel = "lab.nth/ends"
	// poolLabel holds together the nodes that a workload may run on.
	poolLabel = "lab.nth/pool"
	// appLabel names the workload of a pod.
	appLabel = "app"
)

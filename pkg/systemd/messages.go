package systemd

// Message IDs, one for each kind of message. An ID never changes: filters, alerts and the message catalog, which "journalctl -x"
// shows, depend on it.
const (
	// Started: nth has read its settings and starts to watch.
	Started = "f8b18783b77249558fbb6132356cb467"
	// Reloaded: nth has reloaded its settings.
	Reloaded = "09f4a742e016493aa30807f8681a0cea"
	// Stopping: nth stops, as it was asked to.
	Stopping = "f2f41d2ceedd43468ff8a98e436abbb4"
	// EventSeen: an event was announced.
	EventSeen = "bddb3845679a4cd2847c6d33d58bec1e"
	// EventWithdrawn: an event is no longer announced, or was canceled.
	EventWithdrawn = "0112d2075bf646d68813f5d9e46c6ae9"
	// PowerButton: the power button was pressed, and nth handles it; or the machine cannot be powered off.
	PowerButton = "7065e52e09f34b9190063edf85114e75"
	// Cordoned: nth has cordoned the node.
	Cordoned = "8557131eebb441bd91365efd595fba3b"
	// CordonForeign: the node was already cordoned by somebody else, whose cordon it stays.
	CordonForeign = "984c5e4cca2a498daeb1a4d5a0ce1a07"
	// CordonLifted: somebody has uncordoned the node during an event, for which nth does not cordon it again.
	CordonLifted = "5d0f2c9b7e3a4b6f8c41d95e07a2b3f6"
	// CordonFailed: the node cannot be cordoned or uncordoned; nth tries again.
	CordonFailed = "e1d7e89501e445129ba403437d011e41"
	// CordonLeft: nth no longer needs its cordon, but somebody else does.
	CordonLeft = "7eb93c27586846ae8e817f0acaaf598c"
	// DrainStarted: nth has begun to evict the pods.
	DrainStarted = "bb6c9e7cc06c4f04bb0fcf37571c0a47"
	// PodEvicted: the API server accepted the eviction of a pod.
	PodEvicted = "b87259c24809441aa966610643a0d8e2"
	// PodHeld: a disruption budget does not allow an eviction, which is retried; or a pod is replaced before it is evicted.
	PodHeld = "85727e0151db4ee987d2a72ae0bbc9ee"
	// PodDeleted: a pod was deleted that would not have terminated before the deadline.
	PodDeleted = "1b834d577df2444489f9d6feade3f7fa"
	// PodGone: a pod is no longer on the node.
	PodGone = "2b65777b76be4a3db3a2e22a0b6f29c3"
	// Drained: no pod is left on the node that can be evicted.
	Drained = "9fe1a9f46db14a18b16abc442fe09dea"
	// DrainIncomplete: the time for a drain is over, and pods are left.
	DrainIncomplete = "e9c40ac4cdd14915ad798c24eac3e3a9"
	// DrainLeft: operators want the node left alone, so that it is not drained; or no longer do.
	DrainLeft = "3c1f8f0a5d6b4b0e9a7d2e64c1b85f37"
	// Rebooting: nth reboots the machine for an event, or cannot.
	Rebooting = "f19c3a86d05e4f2b8a6d7c41e2905b7d"
	// Uncordoned: nth has lifted a cordon that it had set.
	Uncordoned = "2f6dc0b7f92f4c46b17f6a7c052e7a96"
	// SourceTrouble: a source of events does not answer or cannot be understood; its last answer stands.
	SourceTrouble = "bf82315b3653490996f484a9826e6617"
	// SourceRecovered: a source of events answers again.
	SourceRecovered = "4f39a7353201487793fb66db3b374ccd"
	// IdentityWaiting: there is no kubelet's identity yet, or it is not accepted; events are watched meanwhile.
	IdentityWaiting = "ccb270b2b8dc49e299e54121aa2f6e3e"
	// IdentityFound: the API server knows which node this is.
	IdentityFound = "d0d64c3fa83747078e26052296491dd4"
	// StateTrouble: the record on disk cannot be read or written.
	StateTrouble = "c83691e3db4f4f6684de2dee1809feee"
	// NoticeTrouble: something cannot be reported to the cluster or to the webhook. Drains are not affected.
	NoticeTrouble = "76fdff4a63a140329126590b819407a9"
	// NoticeSent: the webhook has accepted a notice.
	NoticeSent = "e22304e3b48d4a2897e08306003e0996"
	// HookFound: nth has found the lifecycle hooks for the termination, and which of them it completes.
	HookFound = "b5cb74be512b4eef81db27d3678fdee9"
	// HookTrouble: a request to Auto Scaling failed; it is retried.
	HookTrouble = "36813462b29b46e499e0c32d931f13fe"
	// HookRefused: the instance's role lacks a permission, so that a lifecycle hook is left to its timeout.
	HookRefused = "ae1ea81054434ab9a1bbcc75f86213ab"
	// HookCompleted: a lifecycle hook was completed, by nth or before.
	HookCompleted = "55bff9ece09c4318836f49c7677df58d"
	// MetricsTrouble: metrics cannot be served, or their file cannot be written. Drains are not affected.
	MetricsTrouble = "c098d30cd5a74cf4ae2bff56df5bd484"
	// ConfigInvalid: the settings are invalid. nth does not start, and on a reload keeps the current ones.
	ConfigInvalid = "af433a064f5140b0b45ea31d181507a3"
	// MessagePoisoned: nth-queue cannot understand a message in the queue.
	MessagePoisoned = "b7e1f60dd6c94bf29c0b5f4f5c8b2f57"
	// DryRun: what nth would do now if this were no dry run.
	DryRun = "c6ddba585f5e4728855d913e38d03983"
)

// Names of journal fields, for use as logrus fields.
const (
	// FieldMessageID holds one of the message IDs above.
	FieldMessageID = "MESSAGE_ID"
	// FieldEventID holds event.Event.ID, and FieldEventKind its Kind.
	FieldEventID   = "NTH_EVENT_ID"
	FieldEventKind = "NTH_EVENT_KIND"
	// FieldPhase holds the state.Phase of the event.
	FieldPhase = "NTH_PHASE"
	// FieldNode holds the name of the Node.
	FieldNode = "NTH_NODE"
	// FieldPod holds a pod as "namespace/name".
	FieldPod = "NTH_POD"
)

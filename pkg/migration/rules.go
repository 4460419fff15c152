package migration

// rule says what becomes of one of the handler's settings: either to tells it, or why there is no counterpart.
type rule struct {
	env   string // the name of the environment variable
	chart string // the name among the Helm chart's values; "" if the chart has none
	to    func(s Settings, value string) ([]line, error)
	// why says why there is no counterpart, or what else to know about the one there is.
	why string
	// always: it has something to say also where it is not set.
	always bool
	// idle says why nothing came of a value; "" is that nth does so by itself.
	idle string
	// queue is the rule of nth-queue, where it is another one.
	queue *rule
}

// line is one setting of nth. Its value is TOML.
type line struct {
	table, key, value string
	// file is the file that the value names, and secret what stands in it; "" if it names none.
	file, secret string
}

const (
	spot        = "events.spot-interruption"
	rebalance   = "events.rebalance-recommendation"
	maintenance = "events.scheduled-maintenance"
	asg         = "events.asg-termination"
	shutdown    = "events.shutdown"
	hibernation = "events.hibernation"
	reservation = "events.reservation-end"
	stateChange = "events.state-change"
)

const (
	queueOnly           = "of the queue mode, which nth-queue has: `nth-queue config import` takes it over"
	noMetadata          = "nth-queue asks no metadata service"
	everyKind           = "in the queue mode, the handler acts upon whatever is in the queue; `action` says more here"
	everyRecommendation = "in the queue mode, the handler drains for every recommendation that is in the queue, whatever this says"
	everyNode           = "nth-queue acts for all nodes"
	noTaints            = "a node's own credential may not set taints; the cordon keeps new pods away"
	ownIdentity         = "the kubelet's credential says which node this is"
	noPod               = "there is no pod"
)

// rules lists every setting that the handler has.
var rules = []rule{
	{env: "ENABLE_SPOT_INTERRUPTION_DRAINING", chart: "enableSpotInterruptionDraining", to: acts(spot), queue: &rule{why: everyKind}},
	{env: "ENABLE_SCHEDULED_EVENT_DRAINING", chart: "enableScheduledEventDraining", to: acts(maintenance),
		why: "stops and retirements are drained a day before their date, reboots ten to thirty minutes before: `codes`, `window` and `lead` say more", queue: &rule{why: everyKind}},
	{env: "ENABLE_ASG_LIFECYCLE_DRAINING", chart: "enableASGLifecycleDraining", to: acts(asg), queue: &rule{why: everyKind}},
	{env: "ENABLE_REBALANCE_MONITORING", chart: "enableRebalanceMonitoring", to: rebalances("cordon"),
		why: "the cordon ends after `cordon_for`", idle: "no more is done for a recommendation than ENABLE_REBALANCE_DRAINING says", queue: &rule{why: everyRecommendation}},
	{env: "ENABLE_REBALANCE_DRAINING", chart: "enableRebalanceDraining", to: rebalances("drain"), queue: &rule{to: queuedRebalances, always: true, why: everyRecommendation}},
	{env: "CORDON_ONLY", chart: "cordonOnly", to: cordonsOnly, queue: &rule{to: queuedCordonsOnly}},
	{env: "DRY_RUN", chart: "dryRun", to: boolean("", "dry_run")},
	{env: "INSTANCE_METADATA_URL", chart: "instanceMetadataURL", to: endpoint, queue: &rule{why: noMetadata}},
	{env: "METADATA_TRIES", chart: "metadataTries", why: "a look that fails is repeated at the next poll, half a second later", queue: &rule{why: noMetadata}},
	{env: "NODE_TERMINATION_GRACE_PERIOD", chart: "nodeTerminationGracePeriod", why: "the deadline is the one that EC2 names, and nth uses all of it", queue: &rule{why: "`budget` of each kind of event says how long a drain may take; pods that are left then are deleted"}},
	{env: "POD_TERMINATION_GRACE_PERIOD", chart: "podTerminationGracePeriod", to: grace},
	{env: "GRACE_PERIOD", chart: "gracePeriod", to: oldGrace, idle: "it counts only if it is not negative, and POD_TERMINATION_GRACE_PERIOD is not set"},
	{env: "DELETE_LOCAL_DATA", chart: "deleteLocalData", to: inverted("drain", "protect_empty_dir")},
	{env: "IGNORE_DAEMON_SETS", chart: "ignoreDaemonSets", why: "DaemonSet pods are always left alone"},
	{env: "EXCLUDE_FROM_LOAD_BALANCERS", chart: "excludeFromLoadBalancers", to: boolean("drain", "exclude_from_load_balancers"),
		why: "`load_balancer_wait` waits for load balancers to follow"},
	{env: "TAINT_NODE", chart: "taintNode", why: noTaints, queue: &rule{to: boolean("fleet", "taints")}},
	{env: "TAINT_EFFECT", chart: "taintEffect", why: noTaints, queue: &rule{to: quoted("fleet", "taint_effect")}},
	{env: "ENABLE_OUT_OF_SERVICE_TAINT", chart: "enableOutOfServiceTaint", why: noTaints, queue: &rule{to: boolean("fleet", "out_of_service"), why: "once EC2 says that the instance is stopped or terminated"}},
	{env: "KUBE_API_QPS", why: "one node's drain has no limit on the client's side"},
	{env: "KUBE_API_BURST", why: "one node's drain has no limit on the client's side"},
	{env: "USE_APISERVER_CACHE", chart: "useAPIServerCacheToListPods", why: "pods are followed by a watch"},
	{env: "WORKERS", chart: "workers", why: "one node, one drain", queue: &rule{to: workers, why: "a spot interruption does not wait"}},
	{env: "NODE_NAME", why: ownIdentity, queue: &rule{why: everyNode}},
	{env: "POD_NAME", why: noPod},
	{env: "KUBERNETES_SERVICE_HOST", why: "the kubeconfig says where the API server is"},
	{env: "KUBERNETES_SERVICE_PORT", why: "the kubeconfig says where the API server is"},
	{env: "NAMESPACE", why: noPod},
	{env: "USE_PROVIDER_ID", chart: "useProviderId", why: ownIdentity, queue: &rule{why: "nodes are found by their provider ID, and by their private DNS name where they have none"}},
	{env: "UPTIME_FROM_FILE", chart: "procUptimeFile", why: "the kernel's boot ID tells whether there was a reboot", queue: &rule{why: "of the other mode"}},
	{env: "JSON_LOGGING", chart: "jsonLogging", to: jsonLog, why: "under systemd the journal has all fields, and `auto` writes to it"},
	{env: "LOG_LEVEL", chart: "logLevel", to: logLevel},
	{env: "LOG_FORMAT_VERSION", chart: "logFormatVersion", why: "nth's fields are its own: see docs/events.md"},

	{env: "EMIT_KUBERNETES_EVENTS", chart: "emitKubernetesEvents", to: boolean("kubernetes", "events")},
	{env: "KUBERNETES_EVENTS_EXTRA_ANNOTATIONS", chart: "kubernetesEventsExtraAnnotations", to: annotations},
	{env: "WEBHOOK_URL", chart: "webhookURL", to: webhookURL,
		why: "the handler posts once for each event, after the work: so does this. Without `at_detection = false` what is announced is posted, too, of which some is only told"},
	{env: "WEBHOOK_HEADERS", chart: "webhookHeaders", to: headers},
	{env: "WEBHOOK_TEMPLATE", chart: "webhookTemplate", to: template, idle: "WEBHOOK_TEMPLATE_FILE goes before it"},
	{env: "WEBHOOK_TEMPLATE_FILE", why: "copy the template to the node and name it as `template_file` in [webhook]"},
	{env: "WEBHOOK_PROXY", chart: "webhookProxy", to: webhookProxy, idle: "it holds a password, which is not shown: set `proxy` in [webhook] by hand, in a file that only root reads"},
	{env: "ENABLE_PROMETHEUS_SERVER", chart: "enablePrometheusServer", to: listens,
		why: "`compatible` adds the metrics under their old names; the port is open to the network, as it was"},
	{env: "PROMETHEUS_SERVER_PORT", chart: "prometheusServerPort", to: listensAt, idle: "counts only with ENABLE_PROMETHEUS_SERVER"},
	{env: "ENABLE_PROBES_SERVER", chart: "enableProbesServer", why: "the listener of [metrics] has /healthz; systemd's watchdog needs none"},
	{env: "PROBES_SERVER_PORT", chart: "probesServerPort", why: "the listener of [metrics] has /healthz"},
	{env: "PROBES_SERVER_ENDPOINT", chart: "probesServerEndpoint", why: "the listener of [metrics] has /healthz"},

	{env: "COMPLETE_LIFECYCLE_ACTION_DELAY_SECONDS", chart: "completeLifecycleActionDelaySeconds", why: "the hook is completed when the drain has ended", queue: &rule{why: "the hook is completed when the drain has ended"}},
	{env: "HEARTBEAT_INTERVAL", chart: "heartbeatInterval", why: "the interval follows from the hook's own timeout"},
	{env: "HEARTBEAT_UNTIL", chart: "heartbeatUntil", why: "heartbeats end with the drain, which `budget` in [events.asg-termination] bounds"},
	{env: "AWS_REGION", chart: "awsRegion", to: quoted("aws", "region")},
	{env: "AWS_ENDPOINT", chart: "awsEndpoint", to: address("aws", "endpoint")},

	{env: "ENABLE_SQS_TERMINATION_DRAINING", chart: "enableSqsTerminationDraining", why: queueOnly, queue: &rule{why: "nth-queue is there for nothing else"}},
	{env: "QUEUE_URL", chart: "queueURL", why: queueOnly, queue: &rule{to: address("queue", "url")}},
	{env: "CHECK_TAG_BEFORE_DRAINING", chart: "checkTagBeforeDraining", why: queueOnly, queue: &rule{to: checksTag, idle: "every node of the cluster is drained, as it was"}},
	{env: "MANAGED_TAG", chart: "managedTag", why: queueOnly, queue: &rule{to: managedTag, always: true, why: "there, only instances with this tag are drained for, unless CHECK_TAG_BEFORE_DRAINING=false", idle: "every node of the cluster is drained, as it was"}},
	{env: "CHECK_ASG_TAG_BEFORE_DRAINING", chart: "checkASGTagBeforeDraining", why: queueOnly, queue: &rule{to: checksTag, idle: "every node of the cluster is drained, as it was"}},
	{env: "MANAGED_ASG_TAG", chart: "managedAsgTag", why: queueOnly, queue: &rule{to: managedTag, idle: "every node of the cluster is drained, as it was"}},
	{env: "DELETE_SQS_MSG_IF_NODE_NOT_FOUND", chart: "deleteSqsMsgIfNodeNotFound", why: queueOnly, queue: &rule{to: unknownNode}},
	{env: "SQS_MSG_VISIBILITY_TIMEOUT_SEC", chart: "sqsMsgVisibilityTimeoutSec", why: queueOnly, queue: &rule{to: visibility, why: "it is extended while a drain goes on, and here it is ten seconds or more"}},
}

// of is the rule of the program for which the settings are.
func (r rule) of(s Settings) rule {
	if !s.queue || r.queue == nil {
		return r
	}
	own := *r.queue
	own.env = r.env
	return own
}

func ruleOf(env string) *rule {
	for i := range rules {
		if rules[i].env == env {
			return &rules[i]
		}
	}
	return nil
}

func ruleOfChart(key string) *rule {
	for i := range rules {
		if key != "" && rules[i].chart == key {
			return &rules[i]
		}
	}
	return nil
}

// aboutPod are the chart's values about the pod and what comes with it.
var aboutPod = []string{
	"affinity", "customLabels", "daemonsetAffinity", "daemonsetNodeSelector", "daemonsetPriorityClassName", "daemonsetTolerations",
	"dnsConfig", "dnsPolicy", "fullnameOverride", "image", "imagePullSecrets", "labels", "linuxAffinity", "linuxDnsPolicy", "linuxNodeSelector",
	"linuxPodAnnotations", "linuxPodLabels", "linuxTolerations", "linuxUpdateStrategy", "nameOverride", "nodeSelector", "nodeSelectorTermsArch", "nodeSelectorTermsOs", "podAnnotations",
	"podDisruptionBudget", "podLabels", "podMonitor", "podSecurityContext", "priorityClassName", "probes", "rbac", "replicas",
	"resources", "securityContext", "serviceAccount", "serviceMonitor", "strategy", "targetNodeOs", "terminationGracePeriodSeconds",
	"tolerations", "topologySpreadConstraints", "updateStrategy", "useHostNetwork", "windowsAffinity", "windowsDnsPolicy",
	"windowsNodeSelector", "windowsPodAnnotations", "windowsPodLabels", "windowsTolerations", "windowsUpdateStrategy",
}

// aboutNodes are those of them that say where the pod is.
var aboutNodes = []string{"affinity", "daemonsetAffinity", "daemonsetNodeSelector", "linuxAffinity", "linuxNodeSelector", "nodeSelector"}

variable "name" {
  description = "Begins the names of the queues and the rules. Two clusters in one region have two names, and two queues."
  type        = string
  default     = "nth-queue"

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,40}$", var.name))
    error_message = "The name must have 1 to 40 letters, digits, hyphens and underscores."
  }
}

variable "encryption" {
  description = "SQS encrypts with keys of its own, which cost nothing. KMS makes a key of yours, whose uses CloudTrail shows."
  type        = string
  default     = "SQS"

  validation {
    condition     = contains(["SQS", "KMS"], var.encryption)
    error_message = "The encryption must be SQS or KMS."
  }
}

variable "state_changes" {
  description = "Whether to hear of every instance of the region that stops, terminates or runs again."
  type        = bool
  default     = true
}

variable "launch_hooks" {
  description = "Whether nth-queue completes launch hooks of Auto Scaling groups, too."
  type        = bool
  default     = true
}

variable "sender" {
  description = "The ARN of a role or user that may write into the queue, too, such as to try a message, or the role by which Auto Scaling sends to a queue itself. Empty is the rules alone."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^(arn:aws[a-z-]*:iam::[0-9]{12}:(role|user)/[A-Za-z0-9+=,.@_/-]+)?$", var.sender))
    error_message = "The sender must be the ARN of a role or a user."
  }
}

variable "consumer" {
  description = "Who reads the queue. instance makes a role and an instance profile for a host, service-account a role for a Kubernetes service account (IRSA), pod-identity one for EKS Pod Identity; none makes the policy alone."
  type        = string
  default     = "instance"

  validation {
    condition     = contains(["instance", "service-account", "pod-identity", "none"], var.consumer)
    error_message = "The consumer must be instance, service-account, pod-identity or none."
  }
}

variable "cluster_name" {
  description = "The EKS cluster. Needed for pod-identity. With instance, the role becomes the group nth-queue in the cluster, to which nth-queue-rbac.yaml gives its rights; leave it empty to do that in another way."
  type        = string
  default     = ""
}

variable "oidc_provider" {
  description = "Needed for service-account. The cluster's issuer without https://, as IAM's provider is named: EKS's, such as oidc.eks.REGION.amazonaws.com/id/ID or oidc-eks.REGION.api.aws/id/ID, or that of a cluster of your own."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^([a-z0-9-]+([.][a-z0-9-]+)+(/[A-Za-z0-9._~-]+)*)?$", var.oidc_provider))
    error_message = "The provider must be an issuer without https://, such as oidc.eks.REGION.amazonaws.com/id/ID."
  }
}

variable "namespace" {
  description = "The namespace of the service account."
  type        = string
  default     = "kube-system"
}

variable "service_account" {
  description = "The name of the service account."
  type        = string
  default     = "nth-queue"
}

variable "managed_tag" {
  description = "The key of a tag that a group must have for its hooks to be answered; empty is any group of the account and region. Take that of the setting fleet.managed_tag if all groups have it, and not only their instances."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^[A-Za-z0-9 _.:/=+@-]{0,128}$", var.managed_tag))
    error_message = "The key must be one that a tag can have."
  }
}

variable "finish_maintenance" {
  description = "Whether nth-queue may reboot, stop, start and terminate instances, which the setting finish of scheduled maintenance needs. With a tag only those that have it."
  type        = bool
  default     = false
}

variable "tags" {
  description = "Tags for everything that can have them."
  type        = map(string)
  default     = {}
}

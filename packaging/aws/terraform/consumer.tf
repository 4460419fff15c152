# Who reads the queue.

# What nth-queue calls, and nothing else; docs/queue.md says what for.
data "aws_iam_policy_document" "consumer" {
  statement {
    sid = "ReadTheQueue"
    actions = [
      "sqs:ReceiveMessage",
      "sqs:ChangeMessageVisibility",
      "sqs:DeleteMessage",
      "sqs:GetQueueAttributes",
    ]
    resources = [aws_sqs_queue.interruptions.arn]
  }

  # These cannot be limited to a resource.
  statement {
    sid = "AskAboutInstances"
    actions = [
      "ec2:DescribeInstances",
      "ec2:DescribeInstanceStatus",
      "autoscaling:DescribeLifecycleHooks",
    ]
    resources = ["*"]
  }

  statement {
    sid = "AnswerHooks"
    actions = [
      "autoscaling:RecordLifecycleActionHeartbeat",
      "autoscaling:CompleteLifecycleAction",
    ]
    resources = ["arn:${data.aws_partition.this.partition}:autoscaling:${data.aws_region.this.id}:${local.account}:autoScalingGroup:*:autoScalingGroupName/*"]

    dynamic "condition" {
      for_each = var.managed_tag == "" ? [] : [var.managed_tag]
      content {
        test     = "Null"
        variable = "aws:ResourceTag/${condition.value}"
        values   = ["false"]
      }
    }
  }

  dynamic "statement" {
    for_each = var.finish_maintenance ? [true] : []
    content {
      sid       = "FinishMaintenance"
      actions   = ["ec2:RebootInstances", "ec2:StopInstances", "ec2:StartInstances", "ec2:TerminateInstances"]
      resources = ["arn:${data.aws_partition.this.partition}:ec2:${data.aws_region.this.id}:${local.account}:instance/*"]

      dynamic "condition" {
        for_each = var.managed_tag == "" ? [] : [var.managed_tag]
        content {
          test     = "Null"
          variable = "aws:ResourceTag/${condition.value}"
          values   = ["false"]
        }
      }
    }
  }

  dynamic "statement" {
    for_each = aws_kms_key.queue
    content {
      sid       = "DecryptMessages"
      actions   = ["kms:Decrypt"]
      resources = [statement.value.arn]
    }
  }
}

resource "aws_iam_policy" "consumer" {
  name_prefix = "${var.name}-"
  description = "Read the queue ${var.name}, ask about instances, answer lifecycle hooks"
  policy      = data.aws_iam_policy_document.consumer.json
  tags        = var.tags
}

resource "aws_iam_role" "consumer" {
  count = var.consumer == "none" ? 0 : 1

  name_prefix        = "${substr(var.name, 0, 37)}-"
  description        = "Reads the queue ${var.name}"
  assume_role_policy = data.aws_iam_policy_document.trust.json
  tags               = var.tags

  lifecycle {
    precondition {
      condition     = var.consumer != "service-account" || var.oidc_provider != ""
      error_message = "With the consumer service-account, oidc_provider has to be given."
    }
    precondition {
      condition     = var.consumer != "pod-identity" || var.cluster_name != ""
      error_message = "With the consumer pod-identity, cluster_name has to be given."
    }
  }
}

resource "aws_iam_role_policy_attachment" "consumer" {
  count = length(aws_iam_role.consumer)

  role       = aws_iam_role.consumer[0].name
  policy_arn = aws_iam_policy.consumer.arn
}

data "aws_iam_policy_document" "trust" {
  dynamic "statement" {
    for_each = var.consumer == "instance" ? [true] : []
    content {
      actions = ["sts:AssumeRole"]
      principals {
        type        = "Service"
        identifiers = ["ec2.${data.aws_partition.this.dns_suffix}"]
      }
    }
  }

  dynamic "statement" {
    for_each = var.consumer == "service-account" ? [true] : []
    content {
      actions = ["sts:AssumeRoleWithWebIdentity"]
      principals {
        type        = "Federated"
        identifiers = ["arn:${data.aws_partition.this.partition}:iam::${local.account}:oidc-provider/${var.oidc_provider}"]
      }
      condition {
        test     = "StringEquals"
        variable = "${var.oidc_provider}:aud"
        values   = ["sts.amazonaws.com"]
      }
      condition {
        test     = "StringEquals"
        variable = "${var.oidc_provider}:sub"
        values   = ["system:serviceaccount:${var.namespace}:${var.service_account}"]
      }
    }
  }

  dynamic "statement" {
    for_each = var.consumer == "pod-identity" ? [true] : []
    content {
      actions = ["sts:AssumeRole", "sts:TagSession"]
      principals {
        type        = "Service"
        identifiers = ["pods.eks.amazonaws.com"]
      }
      # EKS says as whom it asks, in tags of the session.
      condition {
        test     = "StringEquals"
        variable = "aws:RequestTag/eks-cluster-name"
        values   = [var.cluster_name]
      }
      condition {
        test     = "StringEquals"
        variable = "aws:RequestTag/kubernetes-namespace"
        values   = [var.namespace]
      }
      condition {
        test     = "StringEquals"
        variable = "aws:RequestTag/kubernetes-service-account"
        values   = [var.service_account]
      }
    }
  }
}

resource "aws_iam_instance_profile" "consumer" {
  count = var.consumer == "instance" ? 1 : 0

  name_prefix = "${var.name}-"
  role        = aws_iam_role.consumer[0].name
  tags        = var.tags
}

resource "aws_eks_access_entry" "consumer" {
  count = var.consumer == "instance" && var.cluster_name != "" ? 1 : 0

  cluster_name      = var.cluster_name
  principal_arn     = aws_iam_role.consumer[0].arn
  kubernetes_groups = ["nth-queue"]
  type              = "STANDARD"
  tags              = var.tags
}

resource "aws_eks_pod_identity_association" "consumer" {
  count = var.consumer == "pod-identity" ? 1 : 0

  cluster_name    = var.cluster_name
  namespace       = var.namespace
  service_account = var.service_account
  role_arn        = aws_iam_role.consumer[0].arn
  tags            = var.tags
}

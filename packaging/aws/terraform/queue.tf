# The queue, its dead-letter queue, that of the rules, and the key if there is to be one.

data "aws_partition" "this" {}
data "aws_region" "this" {}
data "aws_caller_identity" "this" {}

locals {
  account  = data.aws_caller_identity.this.account_id
  with_key = var.encryption == "KMS"
  key      = local.with_key ? aws_kms_key.queue[0].arn : null
}

# A message that comes here late in its life does not stay for long: SQS counts from when it was first sent.
resource "aws_sqs_queue" "dead_letters" {
  name                      = "${var.name}-dead-letters"
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = local.with_key ? null : true
  kms_master_key_id         = local.key
  tags                      = var.tags
}

# nth-queue brings a visibility of its own with every request. A message that nobody understands is received each 20 seconds,
# and others again after a change of leader.
resource "aws_sqs_queue" "interruptions" {
  name                       = var.name
  message_retention_seconds  = 1209600
  receive_wait_time_seconds  = 20
  visibility_timeout_seconds = 20
  sqs_managed_sse_enabled    = local.with_key ? null : true
  kms_master_key_id          = local.key
  tags                       = var.tags

  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_letters.arn
    maxReceiveCount     = 100
  })
}

resource "aws_sqs_queue_redrive_allow_policy" "dead_letters" {
  queue_url = aws_sqs_queue.dead_letters.id

  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = [aws_sqs_queue.interruptions.arn]
  })
}

# What EventBridge could not deliver, with the reason in attributes.
resource "aws_sqs_queue" "undelivered" {
  name                      = "${var.name}-undelivered"
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = local.with_key ? null : true
  kms_master_key_id         = local.key
  tags                      = var.tags
}

resource "aws_sqs_queue_policy" "interruptions" {
  queue_url = aws_sqs_queue.interruptions.id
  policy    = data.aws_iam_policy_document.queue["interruptions"].json
}

resource "aws_sqs_queue_policy" "undelivered" {
  queue_url = aws_sqs_queue.undelivered.id
  policy    = data.aws_iam_policy_document.queue["undelivered"].json
}

resource "aws_sqs_queue_policy" "dead_letters" {
  queue_url = aws_sqs_queue.dead_letters.id
  policy    = data.aws_iam_policy_document.queue["dead_letters"].json
}

locals {
  # Nobody but the rules writes, whatever policies of their own say: who can write has nodes drained. SQS moves dead letters by
  # itself, and no role or user puts others among them.
  queues = {
    interruptions = { arn = aws_sqs_queue.interruptions.arn, by_rules = true, sender = var.sender }
    undelivered   = { arn = aws_sqs_queue.undelivered.arn, by_rules = true, sender = "" }
    dead_letters  = { arn = aws_sqs_queue.dead_letters.arn, by_rules = false, sender = "" }
  }
  rule_arns = [for rule in aws_cloudwatch_event_rule.this : rule.arn]
}

data "aws_iam_policy_document" "queue" {
  for_each = local.queues

  dynamic "statement" {
    for_each = each.value.by_rules ? [true] : []
    content {
      sid       = "TheRulesWrite"
      actions   = ["sqs:SendMessage"]
      resources = [each.value.arn]

      principals {
        type        = "Service"
        identifiers = ["events.amazonaws.com"]
      }

      condition {
        test     = "ArnEquals"
        variable = "aws:SourceArn"
        values   = local.rule_arns
      }
    }
  }

  statement {
    sid       = "NobodyElseWrites"
    effect    = "Deny"
    actions   = ["sqs:SendMessage"]
    resources = [each.value.arn]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = each.value.by_rules ? "ArnNotEquals" : "BoolIfExists"
      variable = each.value.by_rules ? "aws:SourceArn" : "aws:PrincipalIsAWSService"
      values   = each.value.by_rules ? local.rule_arns : ["false"]
    }

    dynamic "condition" {
      for_each = each.value.sender == "" ? [] : [each.value.sender]
      content {
        test     = "ArnNotLike"
        variable = "aws:PrincipalArn"
        values   = [condition.value]
      }
    }
  }

  statement {
    sid       = "NobodyComesInTheClear"
    effect    = "Deny"
    actions   = ["sqs:*"]
    resources = [each.value.arn]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

resource "aws_kms_key" "queue" {
  count = local.with_key ? 1 : 0

  description         = "Encrypts the queue ${var.name}"
  enable_key_rotation = true
  policy              = data.aws_iam_policy_document.key.json
  tags                = var.tags
}

data "aws_iam_policy_document" "key" {
  statement {
    sid       = "TheAccountAdministers"
    actions   = ["kms:*"]
    resources = ["*"]

    principals {
      type        = "AWS"
      identifiers = ["arn:${data.aws_partition.this.partition}:iam::${local.account}:root"]
    }
  }

  # Without it EventBridge drops what it cannot encrypt. AWS documents no condition that would hold here: who may write is
  # limited by the queue's policy, and nothing else is encrypted with this key.
  statement {
    sid       = "EventBridgeEncrypts"
    actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
    resources = ["*"]

    principals {
      type        = "Service"
      identifiers = ["events.amazonaws.com"]
    }
  }
}

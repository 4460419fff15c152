output "queue_url" {
  description = "The setting url in the table [queue] of nth-queue.toml."
  value       = aws_sqs_queue.interruptions.url
}

output "dead_letters_url" {
  description = "Where messages end that nobody understands."
  value       = aws_sqs_queue.dead_letters.url
}

output "undelivered_url" {
  description = "Where events end that EventBridge could not put into the queue."
  value       = aws_sqs_queue.undelivered.url
}

output "policy_arn" {
  description = "What nth-queue may do in AWS."
  value       = aws_iam_policy.consumer.arn
}

output "role_arn" {
  description = "The role that reads the queue, for the annotation eks.amazonaws.com/role-arn of a service account."
  value       = one(aws_iam_role.consumer[*].arn)
}

output "instance_profile_name" {
  description = "The instance profile of hosts that run nth-queue."
  value       = one(aws_iam_instance_profile.consumer[*].name)
}

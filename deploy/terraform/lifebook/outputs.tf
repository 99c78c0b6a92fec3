output "queue_url" {
  description = "For LIFEBOOK_QUEUE of API and worker processes outside Lambda."
  value       = aws_sqs_queue.jobs.url
}

output "dlq_url" {
  description = "For LIFEBOOK_DLQ."
  value       = aws_sqs_queue.dead.url
}

output "alerts_topic_arn" {
  description = "Subscribe the addresses that are to learn of dead jobs."
  value       = aws_sns_topic.alerts.arn
}

output "trigger_function_arn" {
  description = "Target of the schedules that start runs."
  value       = aws_lambda_function.trigger.arn
}

variable "region" {
  description = "Where everything is made. The contract names us-east-1."
  type        = string
  default     = "us-east-1"
}

variable "package_file" {
  description = "Zip file of the Lambda functions: lucius[aws] and the modules of the workflows."
  type        = string
}

variable "workflow_modules" {
  description = "Python modules in the package that register workflows."
  type        = list(string)
}

variable "python_runtime" {
  description = "Runtime of the Lambda functions."
  type        = string
  default     = "python3.13"
}

variable "function_timeout_seconds" {
  description = "How long one call of the worker may take. The visibility timeout of the queue is six times as long."
  type        = number
  default     = 900

  validation {
    condition     = var.function_timeout_seconds >= 30 && var.function_timeout_seconds <= 900
    error_message = "A Lambda function runs for at most 900 seconds; below 30 a step hardly fits."
  }
}

variable "function_memory_mb" {
  description = "Memory of the Lambda functions."
  type        = number
  default     = 512
}

variable "maximum_concurrency" {
  description = "How many calls of the worker the queue may start at a time. Not reserved concurrency: calls that it throttles count as receives and fill the dead-letter queue with messages that were never tried."
  type        = number
  default     = 20

  validation {
    condition     = var.maximum_concurrency >= 2 && var.maximum_concurrency <= 1000
    error_message = "An event source mapping takes from 2 to 1000."
  }
}

variable "batch_size" {
  description = "Messages in one call. They are worked through one after the other."
  type        = number
  default     = 1
}

variable "max_receive_count" {
  description = "Receives after which a message goes to the dead-letter queue. The contract says 5."
  type        = number
  default     = 5
}

variable "retention_days" {
  description = "How long an ended job is kept. FD-10 is not at hand: this is an assumption."
  type        = number
  default     = 90
}

variable "credits" {
  description = "Whether credits are held at balances: in a table (table), in a system of your own (MODULE:NAME), or not at all (off)."
  type        = string
  default     = "off"

  validation {
    condition     = can(regex("^(off|table|[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*)$", var.credits))
    error_message = "Either off, table or MODULE:NAME."
  }
}

variable "analytics_bus" {
  description = "Name of the EventBridge bus that takes workflow_run_completed."
  type        = string
  default     = "default"
}

variable "file_drop_buckets" {
  description = "Names of S3 buckets whose new files start runs; what they start is in file_drops."
  type        = list(string)
  default     = []
}

variable "file_drops" {
  description = "What files start: a list of objects with bucket, prefix, workspace_id, user_id and workflow_id."
  type        = list(map(string))
  default     = []
}

variable "log_retention_days" {
  description = "How long log lines are kept."
  type        = number
  default     = 365
}

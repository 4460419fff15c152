# Amazon Linux 2023, as EKS publishes it for its nodes.

source "amazon-ebs" "al2023" {
  region        = var.region
  instance_type = local.instance_type
  subnet_id     = var.subnet_id
  ssh_username  = "ec2-user"
  ami_name      = "${var.image_name}-al2023-${var.kubernetes_version}-${var.architecture}-${local.made}"
  tags          = local.tags
  snapshot_tags = local.tags
  run_tags      = local.tags

  source_ami_filter {
    # The account that publishes the EKS images in the regions of the aws partition.
    owners      = ["602401143452"]
    most_recent = true
    filters = {
      name                = "amazon-eks-node-al2023-${local.amazon_architecture}-standard-${var.kubernetes_version}-*"
      root-device-type    = "ebs"
      virtualization-type = "hvm"
    }
  }

  # The machine on which the image is made speaks IMDSv2 only, and so do those that start from the image.
  imds_support = "v2.0"
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }
}

build {
  name    = "al2023"
  sources = ["source.amazon-ebs.al2023"]

  provisioner "file" {
    source      = var.rpm
    destination = "/tmp/nth.rpm"
  }

  provisioner "file" {
    source      = var.settings
    destination = "/tmp/nth-settings.toml"
  }

  provisioner "shell" {
    inline = [
      "sudo dnf install -y /tmp/nth.rpm",
      "sudo install -D -m 0644 /tmp/nth-settings.toml /etc/nth/nth.toml.d/50-image.toml",
      "rm /tmp/nth.rpm /tmp/nth-settings.toml",
      # Enabled, never started: there is no cluster here, and nothing of this machine may be remembered in the image.
      "sudo systemctl enable nth.service",
      # (A "!" would not do: what it negates never ends a shell with -e.)
      "if systemctl is-active --quiet nth.service; then echo 'nth runs on the machine that the image is made of' >&2; exit 1; fi",
      "sudo nth check --offline",
    ]
  }

  post-processor "manifest" {
    output = "manifest-al2023.json"
  }
}

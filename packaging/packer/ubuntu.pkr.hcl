# Ubuntu, as Canonical publishes it for the nodes of EKS.

source "amazon-ebs" "ubuntu" {
  region        = var.region
  instance_type = local.instance_type
  subnet_id     = var.subnet_id
  ssh_username  = "ubuntu"
  ami_name      = "${var.image_name}-ubuntu-${var.kubernetes_version}-${var.architecture}-${local.made}"
  tags          = local.tags
  snapshot_tags = local.tags
  run_tags      = local.tags

  source_ami_filter {
    # Canonical.
    owners      = ["099720109477"]
    most_recent = true
    filters = {
      name                = "ubuntu-eks/k8s_${var.kubernetes_version}/images/*/ubuntu-${var.ubuntu_release}-${var.architecture}-server-*"
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
  name    = "ubuntu"
  sources = ["source.amazon-ebs.ubuntu"]

  provisioner "file" {
    source      = var.deb
    destination = "/tmp/nth.deb"
  }

  provisioner "file" {
    source      = var.settings
    destination = "/tmp/nth-settings.toml"
  }

  provisioner "shell" {
    inline = [
      # Packages are not installed while the first boot still changes the system.
      "cloud-init status --wait >/dev/null",
      "sudo apt-get install -y /tmp/nth.deb",
      "sudo install -D -m 0644 /tmp/nth-settings.toml /etc/nth/nth.toml.d/50-image.toml",
      "rm /tmp/nth.deb /tmp/nth-settings.toml",
      # Of the drop-ins that say how long a shutdown may be delayed, the last by name wins. That of unattended-upgrades asks
      # for 30 s, and its name is behind all others; nth's own, with 150 s, gives it more than it asks for.
      "sudo install -d /etc/systemd/logind.conf.d",
      "sudo ln -sf /dev/null /etc/systemd/logind.conf.d/unattended-upgrades-logind-maxdelay.conf",
      # Enabled, never started: there is no cluster here, and nothing of this machine may be remembered in the image.
      "sudo systemctl enable nth.service",
      # (A "!" would not do: what it negates never ends a shell with -e.)
      "if systemctl is-active --quiet nth.service; then echo 'nth runs on the machine that the image is made of' >&2; exit 1; fi",
      "sudo nth check --offline",
    ]
  }

  post-processor "manifest" {
    output = "manifest-ubuntu.json"
  }
}
